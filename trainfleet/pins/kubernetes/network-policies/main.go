// An agent that enforces the network policies of one node's pods. It evaluates them with kube-network-policies of
// SIG Network: the node's firewall rules queue the first packet of each connection from and to pods to this program,
// which accepts or drops it. The rules are not its own (network_policies.py writes them), so while it does not run,
// new connections of pods wait or fail and none passes unchecked.
//
// A packet passes two queues. The first holds it until the pods at its addresses are known: the API server learns
// the address of a new pod only after the pod has started. It then marks the packet and lets it repeat the rules,
// which send a marked one to the second queue, that of kube-network-policies.
//
// kube-network-policies also writes nftables rules of its own, for the pods of its node. They would also queue what
// the node's rules let pass, and need a `queue` statement, which not every kernel has. With a node name that no node
// has, they select no pod; a kernel that rejects them causes one message at the start.
//
// usage: network-policies KUBECONFIG PODS, with the address range of all pods of the cluster
package main

import (
	"context"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/florianl/go-nfqueue"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

const (
	noNode       = "none/"
	firstQueue   = 101
	policyQueue  = 100
	pods         = "podIPKeyIndex" // the index of kube-network-policies: pods by address
	longestHold  = 5 * time.Second
	pollInterval = 50 * time.Millisecond
	// checked marks a packet that goes through the node's rules again, to the second queue.
	checked = 1 << 20
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: network-policies KUBECONFIG PODS")
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1], netip.MustParsePrefix(os.Args[2])); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig string, podRange netip.Prefix) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	core := factory.Core().V1()
	controller, err := networkpolicy.NewController(
		client, factory.Networking().V1().NetworkPolicies(), core.Namespaces(), core.Pods(), core.Nodes(),
		nil, nil, nil, networkpolicy.Config{NodeName: noNode, QueueID: policyQueue},
	)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	queue, err := hold(ctx, core.Pods().Informer().GetIndexer(), podRange)
	if err != nil {
		return err
	}
	defer queue.Close()
	log.Printf("enforcing network policies")
	return <-ended
}

// hold receives the packets and passes each on once the pods at its addresses are known. A packet whose pods
// remain unknown is dropped.
func hold(ctx context.Context, known cache.Indexer, podRange netip.Prefix) (*nfqueue.Nfqueue, error) {
	queue, err := nfqueue.Open(&nfqueue.Config{
		NfQueue:      firstQueue,
		Flags:        nfqueue.NfQaCfgFlagGSO,
		MaxPacketLen: 20, // an IPv4 header without options
		MaxQueueLen:  4096,
		Copymode:     nfqueue.NfQnlCopyPacket,
		WriteTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	isKnown := func(address netip.Addr) bool {
		if !podRange.Contains(address) {
			return true
		}
		found, err := known.IndexKeys(pods, address.String())
		return err == nil && len(found) > 0
	}
	receive := func(packet nfqueue.Attribute) int {
		id, header := *packet.PacketID, *packet.Payload
		if len(header) < 20 || header[0]>>4 != 4 {
			drop(queue, id)
			return 0
		}
		source := netip.AddrFrom4([4]byte(header[12:16]))
		target := netip.AddrFrom4([4]byte(header[16:20]))
		if isKnown(source) && isKnown(target) {
			pass(queue, packet)
			return 0
		}
		go func() {
			for deadline := time.Now().Add(longestHold); time.Now().Before(deadline); time.Sleep(pollInterval) {
				if isKnown(source) && isKnown(target) {
					pass(queue, packet)
					return
				}
			}
			log.Printf("dropped a packet from %s to %s: no pod has that address", source, target)
			drop(queue, id)
		}()
		return 0
	}
	failed := func(err error) int {
		log.Printf("the queue: %v", err)
		return 0
	}
	return queue, queue.RegisterWithErrorFunc(ctx, receive, failed)
}

func drop(queue *nfqueue.Nfqueue, id uint32) {
	report(queue.SetVerdict(id, nfqueue.NfDrop))
}

// pass keeps the other bits of the mark: kube-proxy has its own.
func pass(queue *nfqueue.Nfqueue, packet nfqueue.Attribute) {
	mark := uint32(checked)
	if packet.Mark != nil {
		mark |= *packet.Mark
	}
	report(queue.SetVerdictWithMark(*packet.PacketID, nfqueue.NfRepeat, int(mark)))
}

func report(err error) {
	if err != nil {
		log.Printf("the verdict of a packet: %v", err)
	}
}
