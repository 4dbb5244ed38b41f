// Kubernetes' five servers and kubectl in one executable: the first argument says which. One file on disk is one
// copy of its code in memory, however many of them run, and one link step instead of six.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var servers = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) > 1 {
		if os.Args[1] == "kubectl" {
			os.Args = os.Args[1:]
			util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
			return
		}
		if server, known := servers[os.Args[1]]; known {
			os.Args = os.Args[1:]
			os.Exit(cli.Run(server()))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: kube PROGRAM FLAGS..., PROGRAM one of kube-apiserver, kube-controller-manager, kube-proxy, kube-scheduler, kubelet, kubectl")
	os.Exit(2)
}
