// A device plugin for stand-ins: it offers resources such as nvidia.com/gpu on the kubelet's device plugin API
// (v1beta1), without the hardware. A pod that is given a device gets a character device that behaves as /dev/null
// at /dev/trainfleet-stand-in/RESOURCE-NUMBER, and the numbers in TRAINFLEET_STAND_IN_RESOURCE.
//
// usage: device-plugin RESOURCE=NUMBER...
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const pollInterval = time.Second

// plugin offers the devices of one resource.
type plugin struct {
	api.UnimplementedDevicePluginServer
	resource string
	count    int
}

// name is the resource without the characters that a file name cannot have: nvidia.com-gpu.
func (p *plugin) name() string { return strings.ReplaceAll(p.resource, "/", "-") }

func (p *plugin) socket() string {
	return filepath.Join(api.DevicePluginPath, "trainfleet-"+p.name()+".sock")
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once: they never become unhealthy. The kubelet ends the stream.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	devices := make([]*api.Device, p.count)
	for number := range devices {
		devices[number] = &api.Device{ID: fmt.Sprintf("%s-%d", p.name(), number), Health: api.Healthy}
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		answer := &api.ContainerAllocateResponse{}
		var numbers []string
		for _, id := range container.DevicesIds {
			number := strings.TrimPrefix(id, p.name()+"-")
			if known, err := strconv.Atoi(number); err != nil || known < 0 || known >= p.count {
				return nil, fmt.Errorf("%s is not a device of %s", id, p.resource)
			}
			numbers = append(numbers, number)
			answer.Devices = append(answer.Devices, &api.DeviceSpec{
				HostPath:      "/dev/null",
				ContainerPath: "/dev/trainfleet-stand-in/" + id,
				Permissions:   "rw",
			})
		}
		variable := strings.ToUpper(strings.NewReplacer(".", "_", "/", "_").Replace(p.resource))
		answer.Envs = map[string]string{"TRAINFLEET_STAND_IN_" + variable: strings.Join(numbers, ",")}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}

// serve listens before it registers, because the kubelet connects at once.
func (p *plugin) serve() error {
	if err := os.Remove(p.socket()); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", p.socket())
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() { log.Fatal(server.Serve(listener)) }()
	connection, err := grpc.NewClient(
		"unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(p.socket()), ResourceName: p.resource,
	})
	return err
}

func main() {
	var plugins []*plugin
	for _, argument := range os.Args[1:] {
		resource, text, _ := strings.Cut(argument, "=")
		count, err := strconv.Atoi(text)
		if err != nil || count < 0 || !strings.Contains(resource, "/") {
			log.Fatalf("%q is not RESOURCE=NUMBER", argument)
		}
		plugins = append(plugins, &plugin{resource: resource, count: count})
	}
	// Later than the kubelet's start, which empties the folder of the sockets.
	for !exists(api.KubeletSocket) {
		time.Sleep(pollInterval)
	}
	for _, each := range plugins {
		if err := each.serve(); err != nil {
			log.Fatalf("%s: %v", each.resource, err)
		}
		log.Printf("%s: %d stand-ins are registered", each.resource, each.count)
	}
	// A kubelet that restarts removes all sockets. The node then starts this program again.
	for {
		time.Sleep(pollInterval)
		for _, each := range plugins {
			if !exists(each.socket()) {
				log.Fatalf("%s: the kubelet has restarted", each.resource)
			}
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
