package httpaction

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillonhq/carillon/pkg/policy"
)

const (
	resolveEvery = 30 * time.Second // how long the resolved addresses of etcd are used
	resolveLimit = 2 * time.Second
)

// guard judges the addresses to which attempts connect: those of this node and of etcd are refused, whatever the policy
// allows, and the policy judges all others.
type guard struct {
	own      func() []netip.AddrPort // nil: there are none
	etcd     []endpoint
	resolver *net.Resolver // nil: the host's

	mu         sync.Mutex
	resolvedAt time.Time      // when resolved was read
	resolved   [][]netip.Addr // the addresses of each endpoint of etcd
}

// endpoint is an endpoint of etcd.
type endpoint struct {
	host string
	port uint16
}

// newGuard returns a guard. It ignores endpoints that are not host:port or URLs, such as unix sockets.
func newGuard(own func() []netip.AddrPort, etcd []string, resolver *net.Resolver) *guard {
	g := &guard{own: own, resolver: resolver}
	for _, e := range etcd {
		if u, err := url.Parse(e); err == nil && u.Host != "" {
			e = u.Host
		}

		host, port, err := net.SplitHostPort(e)
		n, perr := strconv.ParseUint(port, 10, 16)
		if err == nil && perr == nil {
			g.etcd = append(g.etcd, endpoint{strings.ToLower(strings.TrimSuffix(host, ".")), uint16(n)})
		}
	}

	return g
}

// judge judges a connection to an address. host is its name in the URL. An error is a *policy.Refusal.
func (g *guard) judge(ctx context.Context, at netip.AddrPort, host string, rules *policy.HTTP) error {
	// The policy comes first: it refuses zones, so that none reaches the comparisons below.
	if err := rules.Judge(at, host); err != nil {
		return err
	}

	at = netip.AddrPortFrom(rules.Unwrap(at.Addr()), at.Port())
	if g.isOwn(at) {
		return &policy.Refusal{Rule: "http", Why: fmt.Sprintf("port %d of %s belongs to this node, and is never allowed", at.Port(), at.Addr())}
	}
	if g.isEtcd(ctx, at, host) {
		return &policy.Refusal{Rule: "http", Why: fmt.Sprintf("port %d of %s belongs to etcd, and is never allowed", at.Port(), at.Addr())}
	}

	return nil
}

// isOwn reports whether this node listens at an address, or advertises it. Its ports count on every address of this
// host.
func (g *guard) isOwn(at netip.AddrPort) bool {
	if g.own == nil {
		return false
	}

	for _, o := range g.own() {
		if o.Port() == at.Port() && (o.Addr().Unmap() == at.Addr() || isLocal(at.Addr())) {
			return true
		}
	}

	return false
}

// isLocal reports whether an address belongs to this host. If that cannot be determined, it may.
func isLocal(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}

	all, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}

	return slices.ContainsFunc(all, func(i net.Addr) bool {
		p, err := netip.ParsePrefix(i.String())
		return err == nil && p.Addr().Unmap() == a
	})
}

// isEtcd reports whether an address is an endpoint of etcd. On private addresses the ports of etcd are refused on every
// host, because the other members have addresses that this node may not know. 80 and 443 are exceptions.
func (g *guard) isEtcd(ctx context.Context, at netip.AddrPort, host string) bool {
	if len(g.etcd) == 0 {
		return false
	}

	isPort := func(e endpoint) bool { return e.port == at.Port() }
	known := slices.ContainsFunc(g.etcd, isPort)
	private := at.Addr().IsPrivate() || at.Addr().IsLoopback() || isLocal(at.Addr())

	switch port := at.Port(); {
	case private && (port == 2379 || port == 2380 || known && port != 80 && port != 443):
		return true
	case !known:
		return false
	}

	host = strings.ToLower(strings.TrimSuffix(host, "."))
	addrs := g.etcdAddrs(ctx)
	for i, e := range g.etcd {
		if isPort(e) && (e.host == host || slices.Contains(addrs[i], at.Addr())) {
			return true
		}
	}

	return false
}

// etcdAddrs returns the addresses of each endpoint of etcd. It resolves their names at most every 30 seconds, and keeps
// the previous addresses of a name that cannot be resolved.
func (g *guard) etcdAddrs(ctx context.Context) [][]netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.resolved != nil && time.Since(g.resolvedAt) < resolveEvery {
		return g.resolved
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveLimit)
	defer cancel()

	resolver := g.resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}

	next := make([][]netip.Addr, len(g.etcd))
	for i, e := range g.etcd {
		list, err := resolver.LookupNetIP(ctx, "ip", e.host)
		if err != nil && g.resolved != nil {
			list = g.resolved[i]
		}

		for _, a := range list {
			next[i] = append(next[i], a.Unmap())
		}
	}

	g.resolved, g.resolvedAt = next, time.Now()

	return next
}
