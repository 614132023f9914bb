package api

// What the status of a cluster says of etcd.
var (
	Warnings  = warnings
	MakeSpace = makeSpace
	Room      = room
)
