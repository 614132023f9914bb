package daemon

import (
	"context"
	stdlog "log"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"github.com/carillonhq/carillon/executor"
	"github.com/carillonhq/carillon/executor/httpaction"
	"github.com/carillonhq/carillon/executor/spool"
	"github.com/carillonhq/carillon/pkg/policy"
)

// newHTTPActions creates what runs the attempts of HTTP actions.
func (n *Node) newHTTPActions(ctx context.Context, output *spool.Spool) (executor.AttemptRunner, error) {
	if n.env.HTTP != nil {
		return n.env.HTTP, nil
	}

	// Clients reach an embedded etcd only through a unix socket, but its members listen for each other.
	etcd := slices.Concat(n.cfg.EtcdEndpoints, slices.Sorted(maps.Values(n.cfg.InitialCluster)))

	filterStandardLog()
	r, err := httpaction.New(ctx, httpaction.Config{
		Node: n.cfg.Name, Dir: n.cfg.DataDir, Spool: output, Secrets: n.secretReader(),
		Rules: newHTTPRules(n.cfg.HTTPAllow, n.hostFiles).Rules,
		Own:   n.ownAddresses, Etcd: etcd, Boot: n.env.Boot,
		Logger: n.log, Registerer: n.registry,
	})
	if err != nil {
		return nil, err
	}
	n.actions = r

	return r, nil
}

// filterStandardLog keeps what targets have sent out of the standard log, which belongs to the whole program.
var filterStandardLog = sync.OnceFunc(func() { stdlog.SetOutput(httpaction.FilterStandardLog(stdlog.Writer())) })

// ownAddresses returns the addresses at which this process listens, and the one that it advertises. No HTTP attempt may
// connect to them. A host name stands for all addresses of the host, as does an unspecified address.
func (n *Node) ownAddresses() []netip.AddrPort {
	addresses := []string{n.cfg.Listen, hostOfURL(n.cfg.Advertise), hostOfURL(n.cfg.EtcdListenPeer), hostOfURL(n.cfg.InitialCluster[n.cfg.Name])}

	if addr, _ := n.listeners.tcp.listeningAddr(); addr != nil {
		addresses = append(addresses, addr.String())
	}
	if n.metrics != nil {
		addresses = append(addresses, n.metrics.endpoint.address)
		if addr, _ := n.metrics.endpoint.listeningAddr(); addr != nil {
			addresses = append(addresses, addr.String())
		}
	}

	var own []netip.AddrPort
	for _, a := range addresses {
		if at, ok := addrPortOf(a); ok && !slices.Contains(own, at) {
			own = append(own, at)
		}
	}

	return own
}

// hostOfURL returns host:port of a URL, or "" if it has none.
func hostOfURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return ""
	}

	if u.Port() == "" {
		port := "80"
		if u.Scheme == "https" {
			port = "443"
		}
		return net.JoinHostPort(u.Hostname(), port)
	}

	return u.Host
}

// addrPortOf returns the address for host:port. A host name is replaced by the unspecified address. It returns false
// for a port that is 0 or cannot be parsed.
func addrPortOf(s string) (netip.AddrPort, bool) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, false
	}

	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return netip.AddrPort{}, false
	}

	at, err := netip.ParseAddr(host)
	if err != nil {
		at = netip.IPv4Unspecified()
	}

	return netip.AddrPortFrom(at.Unmap().WithZone(""), uint16(port)), true
}

// httpRules is what the policy and the setting http_allow say about HTTP attempts on this node.
type httpRules struct {
	allow []string                       // http_allow
	read  func() (*policy.Policy, error) // nil: the node has no policy

	mu    sync.Mutex
	from  *policy.Policy // the policy from which rules was computed
	rules *httpaction.Rules
}

// newHTTPRules returns the rules of a node.
func newHTTPRules(allow []string, files hostFiles) *httpRules {
	r := &httpRules{allow: allow}
	if files.policy != nil {
		r.read = files.policy.Policy
	}

	return r
}

// Rules returns the current rules. As long as the policy does not change, their HTTP is the same value: the
// executor keeps its connections for that long. An error means that the policy cannot be read, so that nothing may start.
func (r *httpRules) Rules() (httpaction.Rules, error) {
	var p *policy.Policy
	if r.read != nil {
		var err error
		if p, err = r.read(); err != nil {
			return httpaction.Rules{}, err
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.rules == nil || r.from != p {
		rules := joinHTTPRules(p, r.allow)
		r.from, r.rules = p, &rules
	}

	return *r.rules, nil
}

// joinHTTPRules adds http_allow to the rules of a policy, or to none if p is nil. What the policy denies stays denied.
func joinHTTPRules(p *policy.Policy, allow []string) httpaction.Rules {
	targets := &policy.HTTP{}
	var rules httpaction.Rules

	if p != nil {
		rules.Timeout = p.Limits.Timeout.Std()
		rules.NoSecrets = p.Secrets != nil && !*p.Secrets
		if p.HTTP != nil {
			*targets = *p.HTTP
		}
	}

	targets.Allow = slices.Concat(targets.Allow, allow)
	rules.HTTP = targets

	return rules
}
