package api

import (
	"bufio"
	"io"
)

// What the status of a cluster says of etcd.
var (
	Warnings  = warnings
	MakeSpace = makeSpace
	Room      = room
)

// ReadLines are the lines of a body as a batch gets them, and the codes of errors.
func ReadLines(body io.Reader) (all []string) {
	for in := (&lines{in: bufio.NewReader(body)}); !in.over; {
		line, err := in.next()
		if err != nil {
			line = []byte("error " + asFailure(err).Code)
		}
		all = append(all, string(line))
	}
	return all
}
