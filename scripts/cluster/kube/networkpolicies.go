package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// networkPolicies decides on the first packet of each connection, as the NetworkPolicies of the cluster say. Something
// else has to put the packets into its queue: it would do so by nftables, whose queue not every kernel has.
func networkPolicies() {
	flags := flag.NewFlagSet("network-policies", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	node := flags.String("hostname-override", "", "name of this node")
	queue := flags.Int("nfqueue-id", 100, "number of the queue that packets wait in")
	_ = flags.Parse(os.Args[1:])

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	known := informers.NewSharedInformerFactory(clients, 0)
	controller, err := networkpolicy.NewController(
		clients, known.Networking().V1().NetworkPolicies(), known.Core().V1().Namespaces(), known.Core().V1().Pods(),
		nil, nil, nil, nil, networkpolicy.Config{NodeName: *node, QueueID: *queue},
	)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	known.Start(ctx.Done())
	if err := controller.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
