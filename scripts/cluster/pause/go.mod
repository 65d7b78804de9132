// The process that holds a pod's namespaces. Nothing here is compiled into Forerun.
module forerun/scripts/cluster/pause

go 1.25.0
