// Package peerhistory asks other nodes which history of the cluster they follow. After a restore, nodes of the lost history may still
// run, or run again: with an etcd of their own, they would fire everything a second time, and nothing in either etcd shows it.
//
// Each node says in the headers of /healthz which history it follows, without a token and without etcd. An answer counts only if the
// caller has asked for it, at an address that it knows, and with TLS if the address says so. Requests prove nothing.
package peerhistory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

// The headers of /healthz. The value of EpochHeader is EPOCH.RESTORE, or only EPOCH if no restore has begun the epoch. That of
// SessionHeader is held or none.
const (
	ClusterHeader = "Carillon-Cluster"
	EpochHeader   = "Carillon-Epoch"
	SessionHeader = "Carillon-Session"

	sessionHeld, sessionNone = "held", "none"
)

// History is a history of a cluster: everything from one restore of etcd to the next.
type History struct {
	Cluster string
	Epoch   int
	// Restore is the ID of the restore that began the epoch. It is empty if there was none, or if the node does not know it, because it
	// has not reached etcd since it started.
	Restore string
}

// Of returns the history that a cluster's record describes.
func Of(c task.Cluster) History {
	h := History{Cluster: c.ID, Epoch: c.Epoch}
	if r := c.LastRestored(); r != nil && r.Epoch == c.Epoch {
		h.Restore = r.ID
	}

	return h
}

// Status is what a node says about itself.
type Status struct {
	History
	// Session says that the node has a session with its etcd. Only then can it decide ticks and start attempts.
	Session bool
}

// WriteTo sets the headers. Without a cluster, there is nothing to set.
func (s Status) WriteTo(header http.Header) {
	if s.Cluster == "" {
		return
	}

	epoch, session := strconv.Itoa(s.Epoch), sessionNone
	if s.Restore != "" {
		epoch += "." + s.Restore
	}
	if s.Session {
		session = sessionHeld
	}

	header.Set(ClusterHeader, s.Cluster)
	header.Set(EpochHeader, epoch)
	header.Set(SessionHeader, session)
}

// FromHeader returns the status in the headers of an answer. It returns false if they contain none.
func FromHeader(header http.Header) (s Status, ok bool) {
	epoch, restore, _ := strings.Cut(header.Get(EpochHeader), ".")
	n, err := strconv.Atoi(epoch)
	s.Cluster, s.Epoch, s.Restore = header.Get(ClusterHeader), n, restore
	s.Session = header.Get(SessionHeader) != sessionNone

	return s, err == nil && n > 0 && s.Cluster != ""
}

// Supersedes reports whether a node that follows own must give up because another node follows h: h is of a later restore of the same
// cluster, or of another restore with the same epoch. In the latter case both give up, because nothing says which of them is right.
func (h History) Supersedes(own History) bool {
	if h.Cluster != own.Cluster || own.Cluster == "" {
		return false
	}

	return h.Epoch > own.Epoch || h.Epoch == own.Epoch && h.Restore != own.Restore && h.Restore != "" && own.Restore != ""
}

const (
	// timeout is how long a node may take to answer.
	timeout = 3 * time.Second
	// maxAsking is how many nodes AskAll asks at once.
	maxAsking = 32
)

// ErrNoHistory means that somebody answers at an address, but does not say that it follows a cluster.
var ErrNoHistory = errors.New("what answers is not a node of a cluster")

// Asker asks nodes. It is safe for concurrent use.
type Asker struct{ http http.Client }

// NewAsker returns an Asker that connects with dial, and to https addresses with dialTLS.
func NewAsker(dial, dialTLS certs.Dialer) *Asker {
	return &Asker{http.Client{
		// Each question gets a connection of its own. A node asks a few others, at intervals.
		Transport:     &http.Transport{DialContext: dial, DialTLSContext: dialTLS, DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       timeout,
	}}
}

// Dial is the Dialer of the host.
var Dial certs.Dialer = (&net.Dialer{}).DialContext

// Answer is the answer of the node at an address, or why there is none.
type Answer struct {
	Address string
	Status
	Err error
}

// Ask asks the node at an address which history it follows.
func (a *Asker) Ask(ctx context.Context, address string) Answer {
	status, err := a.ask(ctx, address)
	return Answer{address, status, err}
}

// AskAll asks the nodes at all addresses, several at once.
func (a *Asker) AskAll(ctx context.Context, addresses []string) []Answer {
	answers := make([]Answer, len(addresses))
	var group errgroup.Group
	group.SetLimit(maxAsking)
	for i, address := range addresses {
		group.Go(func() error {
			answers[i] = a.Ask(ctx, address)
			return nil
		})
	}
	_ = group.Wait() // each answer has its own error

	return answers
}

// ask reads the headers of /healthz.
func (a *Asker) ask(ctx context.Context, address string) (Status, error) {
	u, err := url.Parse(address)
	if err != nil {
		return Status{}, err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("healthz").String(), http.NoBody)
	if err != nil {
		return Status{}, err
	}

	res, err := a.http.Do(req)
	if err != nil {
		return Status{}, err
	}
	defer res.Body.Close()

	s, ok := FromHeader(res.Header)
	if !ok {
		return Status{}, fmt.Errorf("%s: %w", address, ErrNoHistory)
	}

	return s, nil
}
