module trainfleet/tools/kuberay

go 1.24

require github.com/ray-project/kuberay/ray-operator v1.6.0
