package spool

import (
	"errors"

	"github.com/carillonhq/carillon/pkg/task"
)

// responseShare is the part of the spool that responses of HTTP actions may use: one of so many. Requests can be much
// more numerous than processes, and would displace their output.
const responseShare = 4

// errShareUsed means that the responses use their share of the spool. A sweep removes the oldest of them.
var errShareUsed = errors.New("the stored responses of HTTP actions use their share of the spool")

// NewResponse begins the output of an HTTP action, which its response is. It is like NewOutput, but what is stored counts
// towards the share of responses, and it is written with Write instead of from pipes.
func (s *Spool) NewResponse(path string, wants task.Output) *Output {
	o := s.buildOutput(path, wants)
	o.isResponse = true
	s.activateOutput(o)

	return o
}

// Write adds a part of a response. It never fails; see Summary for what was stored.
func (o *Output) Write(b []byte) (int, error) {
	o.addOutput(b, mergedStream)
	return len(b), nil
}

// takeShare reports whether responses may use more bytes of disk space. If they may not, it requests a sweep.
func (s *Spool) takeShare(bytes int64) bool {
	if s.responses.Add(bytes) <= s.cfg.Total/responseShare {
		return true
	}

	s.responses.Add(-bytes)
	s.sweep.Send()

	return false
}

// shareOf returns the disk space of the responses among the outputs that have ended, and how much of it a sweep leaves.
func (s *Spool) shareOf(files []spooled) (used, goal int64) {
	for _, f := range files {
		if f.isResponse {
			used += f.size
		}
	}

	goal = used
	if most := s.cfg.Total / responseShare; used > most/10*9 {
		goal = most / 10 * 9
	}

	return used, goal
}

// activeResponses returns the size of the responses that are being written.
func (s *Spool) activeResponses() int64 {
	s.mu.Lock()
	var list []*Output
	for _, o := range s.active {
		if o.isResponse {
			list = append(list, o)
		}
	}
	s.mu.Unlock()

	// An output is locked before the spool, so not while mu is held.
	sum := int64(0)
	for _, o := range list {
		o.mu.Lock()
		sum += o.size
		o.mu.Unlock()
	}

	return sum
}
