// Command kube is every part of a small Kubernetes in one program: its first argument picks the part, which takes the
// others. One program links what all parts share once, which makes it a third as large and as long to build.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const wrongUse = 2

// Each part reads os.Args itself, with its own name first.
var parts = map[string]func(){
	"coredns":                 coremain.Run,
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllers.NewControllerManagerCommand),
	"kube-proxy":              command(proxy.NewProxyCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 command(func() *cobra.Command { return cmd.NewDefaultKubectlCommand() }),
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"network-policies":        networkPolicies,
}

func command(make func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(make())) }
}

func main() {
	if len(os.Args) > 1 {
		if part, known := parts[os.Args[1]]; known {
			os.Args = os.Args[1:]
			part()
			return
		}
	}
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: kube PART [ARGUMENT...]; parts: %s\n", strings.Join(names, ", "))
	os.Exit(wrongUse)
}
