package daemon

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// forwardedFor is the header in which proxies name the client of a request. Each proxy appends the address from which it
// got the request.
const forwardedFor = "X-Forwarded-For"

// trustedProxies are the addresses of proxies in front of the node.
type trustedProxies []netip.Prefix

// parseTrustedProxies parses the setting trusted_proxies.
func parseTrustedProxies(texts []string) (trustedProxies, error) {
	var list trustedProxies
	for i, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if addr, e := netip.ParseAddr(text); e == nil && addr.Zone() == "" {
			prefix, err = addr.Prefix(addr.BitLen())
		}

		field := fmt.Sprintf("trusted_proxies[%d]", i)
		switch {
		case err != nil:
			return nil, task.Invalid(task.CodeBadValue, field, "%s is not an address or a network such as 10.0.0.5 or 10.0.0.0/28", task.Quote(text))
		case prefix.Addr().Is4In6():
			return nil, task.Invalid(task.CodeBadValue, field, "%s: write the IPv4 address", task.Quote(text))
		case prefix.Bits() == 0:
			return nil, task.Invalid(task.CodeBadValue, field, "%s would trust every client: list only the addresses of proxies", task.Quote(text))
		}
		list = append(list, prefix.Masked())
	}

	return list, nil
}

// contain reports whether an address is that of a proxy.
func (p trustedProxies) contain(addr netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
}

// clientOf returns the address of the client of a request that came from an address, with the values of its header.
//
// The header is used only if the request came from a proxy. It is read from the right, because clients can send anything, and
// each proxy appends to it: the first address that does not belong to a proxy is the client. If there is none, the request
// comes from a proxy itself. Values that the client has sent are further left and are not read. A value that is not an address
// is an error, because the client must not get the rights of the address to its right.
func (p trustedProxies) clientOf(from netip.Addr, values []string) (netip.Addr, error) {
	if !p.contain(from) {
		return from, nil
	}

	for _, value := range slices.Backward(values) {
		for _, text := range slices.Backward(strings.Split(value, ",")) {
			addr, ok := parseForwarded(strings.TrimSpace(text))
			if !ok {
				return netip.Addr{}, task.Invalid(task.CodeBadValue, forwardedFor, "%s is not an address", task.Quote(text))
			}
			if from = addr; !p.contain(from) {
				return from, nil
			}
		}
	}

	return from, nil
}

// parseForwarded parses an element of the header: an address, which some proxies write with a port.
func parseForwarded(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil {
		var withPort netip.AddrPort
		withPort, err = netip.ParseAddrPort(text)
		addr = withPort.Addr()
	}

	return addr.Unmap(), err == nil && addr.Zone() == ""
}

// wrap returns a handler whose requests have the address of the client as their RemoteAddr, with port 0, if they came from
// a trusted proxy. It removes the header, so that nothing else reads it.
func (p trustedProxies) wrap(h http.Handler) http.Handler {
	if len(p) == 0 {
		return h
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		remote, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil { // over the unix socket
			h.ServeHTTP(w, r)
			return
		}

		from := remote.Addr().Unmap()
		addr, err := p.clientOf(from, r.Header.Values(forwardedFor))
		if err != nil {
			refuseForwarded(w, err)
			return
		}

		r.Header.Del(forwardedFor)
		if addr != from {
			r.RemoteAddr = net.JoinHostPort(addr.String(), "0")
		}
		h.ServeHTTP(w, r)
	})
}

// refuseForwarded answers a request of a proxy with a malformed header.
func refuseForwarded(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(client.Problem{ // an error means that the client has gone
		Type: client.ProblemType(task.CodeBadValue), Title: http.StatusText(http.StatusBadRequest), Status: http.StatusBadRequest,
		Code: task.CodeBadValue, Field: forwardedFor, Detail: err.Error(),
		Hint: "a proxy of trusted_proxies must append the address of its client to this header, or replace the header with it",
	})
}

// validateTrustedProxies checks trusted_proxies.
func (c *Config) validateTrustedProxies() error {
	_, err := parseTrustedProxies(c.TrustedProxies)
	return err
}

// proxyWarnings returns what is wrong with the settings for a proxy, although the node can start.
func (c *Config) proxyWarnings() (list []string) {
	if c.UIOrigin != "" && len(c.TrustedProxies) == 0 && c.TLSCert == "" {
		list = append(list, "trusted_proxies: is not set, but ui_origin is. To the node, all browsers behind a proxy have the address of the proxy: "+
			"they share the limit of failed logins, --cidr of tokens means the proxy, and audit records name it")
	}

	return list
}
