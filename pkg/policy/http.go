package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"code.dny.dev/ssrf"

	"github.com/carillonhq/carillon/pkg/task"
)

// HTTP restricts the targets of HTTP actions. Each entry of Allow and Deny names targets:
//
//	10.1.2.3            an address, 10.0.0.0/8 or fd00::/8 a prefix
//	api.corp            the name in the URL, whatever it resolves to; *.corp also names below corp
//	10.1.2.3:8080       one port of them; an IPv6 address or prefix needs brackets then: [fd00::1]:8080
//
// The first of these steps that applies decides: what no entry can allow, such as the metadata services of clouds;
// Deny; Allow; the default, which allows public addresses and those of private networks (RFC 1918 and fc00::/7), or nothing
// if Default is "deny".
type HTTP struct {
	Default string   `json:"default"` // "deny": Allow lists all targets
	Allow   []string `json:"allow"`   // targets that are allowed although the default refuses them
	Deny    []string `json:"deny"`    // targets that are refused
	NAT64   []string `json:"nat64"`   // the prefixes that this network uses for NAT64, in addition to 64:ff9b::/96
}

// defaultDeny is the value of HTTP.Default.
const defaultDeny = "deny"

// neverAllowed are addresses that no entry can allow. They give their clients credentials, or they are not targets.
var neverAllowed = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address, which metadata services use"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "the metadata service of AWS"},
	{netip.MustParsePrefix("fd20:ce::254/128"), "the metadata service of Google Cloud"},
	{netip.MustParsePrefix("fd00:42::42/128"), "the metadata service of Scaleway"},
	{netip.MustParsePrefix("168.63.129.16/32"), "the host service of Azure"},
	{netip.MustParsePrefix("100.100.100.200/32"), "the metadata service of Alibaba Cloud"},
	{netip.MustParsePrefix("192.0.0.192/32"), "the metadata service of Oracle Cloud"},
	{netip.MustParsePrefix("0.0.0.0/8"), "not the address of a host"},
	{netip.MustParsePrefix("::/128"), "not the address of a host"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("255.255.255.255/32"), "the broadcast address"},
	// Which IPv4 address one of these stands for depends on the network. Those that are listed in nat64 are unwrapped
	// before they get here.
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an address of NAT64 whose prefix is not listed in http.nat64"},
}

// privateNetworks are special prefixes that the default allows.
var privateNetworks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7"),
}

// Prefixes of IPv6 addresses that contain an IPv4 address.
var (
	nat64WellKnown = ssrf.IPv6NAT64Prefix
	sixToFour      = netip.MustParsePrefix("2002::/16")
	v4Compatible   = netip.MustParsePrefix("::/96")
	v4Translated   = netip.MustParsePrefix("::ffff:0:0:0/96")
)

// Judge judges a connection to an address. host is the name or the address in the URL. A nil HTTP has no
// entries. An error is a *Refusal.
func (h *HTTP) Judge(addr netip.AddrPort, host string) error {
	if h == nil {
		h = &HTTP{}
	}

	host = strings.ToLower(strings.TrimSuffix(host, "."))
	at := addr.Addr()
	if at.Zone() != "" {
		return newRefusal("http", "address %s has a zone", at)
	}

	at = at.Unmap()
	text := at.String()
	if inner, only := h.embedded(at); inner.IsValid() {
		// An address of NAT64 stands for an IPv4 address, and only that counts, except that Deny may name both. Of other
		// addresses that contain one, both have to be allowed.
		if only {
			if err := h.judgeDeny(at, addr.Port(), host, text); err != nil {
				return err
			}
		}

		if err := h.judgePlain(inner, addr.Port(), host, inner.String()+" ("+text+")"); err != nil || only {
			return err
		}
	}

	return h.judgePlain(at, addr.Port(), host, text)
}

// Unwrap returns the address for which an address stands: an IPv4 address that is mapped into IPv6 or belongs to NAT64,
// or the address itself.
func (h *HTTP) Unwrap(at netip.Addr) netip.Addr {
	if h == nil {
		h = &HTTP{}
	}

	at = at.Unmap()
	if inner, only := h.embedded(at); only {
		return inner
	}

	return at
}

// judgePlain judges an address that contains no other one. text is how messages show it.
func (h *HTTP) judgePlain(at netip.Addr, port uint16, host, text string) error {
	for _, n := range neverAllowed {
		if n.prefix.Contains(at) {
			return newRefusal("http", "address %s is %s, and is never allowed", text, n.what)
		}
	}

	if err := h.judgeDeny(at, port, host, text); err != nil {
		return err
	}

	for _, e := range h.Allow {
		if t, err := parseTarget(e); err == nil && t.matches(at, port, host) {
			return nil
		}
	}

	if h.Default == defaultDeny {
		return newRefusal("http.allow", "address %s is not listed, and http.default is deny", text)
	}
	if why := deniedByDefault(at); why != "" {
		return newRefusal("http.allow", "address %s is %s, which must be allowed there", text, why)
	}

	return nil
}

// judgeDeny judges an address by Deny. An entry that is not valid denies everything.
func (h *HTTP) judgeDeny(at netip.Addr, port uint16, host, text string) error {
	for i, e := range h.Deny {
		if t, err := parseTarget(e); err != nil || t.matches(at, port, host) {
			return newRefusal("http.deny", "address %s is denied by entry %d", text, i+1)
		}
	}
	return nil
}

// deniedByDefault returns what kind of address it is if the default refuses it, and "" if not.
func deniedByDefault(at netip.Addr) string {
	contains := func(p netip.Prefix) bool { return p.Contains(at) }
	public := at.Is4() && !slices.ContainsFunc(ssrf.IPv4DeniedPrefixes, contains) ||
		at.Is6() && ssrf.IPv6GlobalUnicast.Contains(at) && !slices.ContainsFunc(ssrf.IPv6DeniedPrefixes, contains)

	switch {
	case public, slices.ContainsFunc(privateNetworks, contains):
		return ""
	case at.IsLoopback():
		return "a loopback address"
	}

	return "in a range for special purposes"
}

// embedded returns the IPv4 address that an IPv6 address may stand for, if there is one. only means that nothing else
// about the address counts.
func (h *HTTP) embedded(at netip.Addr) (inner netip.Addr, only bool) {
	if !at.Is6() {
		return netip.Addr{}, false
	}

	// The longest prefix decides, as in a routing table.
	best := -1
	for _, p := range append(h.nat64(), nat64WellKnown) {
		if p.Contains(at) {
			best = max(best, p.Bits())
		}
	}

	b := at.As16()
	switch {
	case best >= 0:
		return embeddedV4(b, best), true
	case sixToFour.Contains(at):
		return netip.AddrFrom4([4]byte(b[2:6])), false
	case v4Compatible.Contains(at) && at != netip.IPv6Loopback() && at != netip.IPv6Unspecified(), v4Translated.Contains(at):
		return netip.AddrFrom4([4]byte(b[12:16])), false
	}

	return netip.Addr{}, false
}

// nat64 returns the prefixes of NAT64 that are valid.
func (h *HTTP) nat64() []netip.Prefix {
	var list []netip.Prefix
	for _, e := range h.NAT64 {
		if p, err := netip.ParsePrefix(e); err == nil && isNAT64(p) {
			list = append(list, p)
		}
	}
	return list
}

// isNAT64 reports whether a prefix has one of the lengths of RFC 6052.
func isNAT64(p netip.Prefix) bool {
	return p.Addr().Is6() && slices.Contains([]int{32, 40, 48, 56, 64, 96}, p.Bits())
}

// embeddedV4 returns the IPv4 address in an address of NAT64 (RFC 6052, section 2.2). Byte 8 is always skipped.
func embeddedV4(b [16]byte, bits int) netip.Addr {
	if bits == 96 {
		return netip.AddrFrom4([4]byte(b[12:16]))
	}

	var v4 [4]byte
	at := bits / 8
	for i := range v4 {
		if at == 8 {
			at++
		}
		v4[i] = b[at]
		at++
	}

	return netip.AddrFrom4(v4)
}

// httpTarget is a parsed entry of Allow or Deny.
type httpTarget struct {
	prefix netip.Prefix // not valid: name counts
	name   string       // in lower case; "*.corp" matches the names below corp
	port   uint16       // 0: every port
}

// matches reports whether the entry names a connection.
func (t httpTarget) matches(at netip.Addr, port uint16, host string) bool {
	switch {
	case t.port != 0 && t.port != port:
		return false
	case t.prefix.IsValid():
		return t.prefix.Contains(at)
	}

	if below, ok := strings.CutPrefix(t.name, "*"); ok {
		return strings.HasSuffix(host, below) && len(host) > len(below)
	}

	return host == t.name
}

// parseTarget parses an entry of Allow or Deny.
func parseTarget(s string) (t httpTarget, err error) {
	where, port := s, ""
	if inner, ok := strings.CutPrefix(s, "["); ok {
		end := strings.LastIndex(inner, "]")
		if end < 0 {
			return t, fmt.Errorf("%s has no closing bracket", task.Quote(s))
		}
		where, port = inner[:end], inner[end+1:]
		if port != "" && port[0] != ':' {
			return t, fmt.Errorf("%s: only a port may follow the bracket", task.Quote(s))
		}
	} else if strings.Count(s, ":") == 1 {
		where, port = s[:strings.Index(s, ":")], s[strings.Index(s, ":"):]
	}

	if port != "" {
		p, err := netip.ParseAddrPort("0.0.0.0" + port)
		if err != nil || p.Port() == 0 {
			return t, fmt.Errorf("%s: the port is not between 1 and 65535", task.Quote(s))
		}
		t.port = p.Port()
	}

	if a, err := netip.ParseAddr(where); err == nil && a.Zone() == "" {
		a = a.Unmap()
		t.prefix = netip.PrefixFrom(a, a.BitLen())
		return t, nil
	}
	if p, err := netip.ParsePrefix(where); err == nil && !p.Addr().Is4In6() {
		t.prefix = p.Masked()
		return t, nil
	}

	t.name = strings.ToLower(strings.TrimSuffix(where, "."))
	if !isTargetName(strings.TrimPrefix(t.name, "*.")) {
		return t, fmt.Errorf("%s is not an address, a prefix or a host name, such as 10.0.0.0/8, [fd00::1]:8080 or *.corp", task.Quote(s))
	}

	return t, nil
}

// isTargetName reports whether s consists of labels of letters, digits, "-" and "_", and cannot be a misspelled
// address.
func isTargetName(s string) bool {
	labels := strings.Split(s, ".")
	for _, l := range labels {
		if l == "" || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}

	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

// Validate checks the entries. The error is a *task.Error whose field begins with field.
func (h *HTTP) Validate(field string) error {
	if h == nil {
		return nil
	}

	if h.Default != "" && h.Default != defaultDeny {
		return task.Invalid(task.CodeBadValue, field+".default", "%s is not %q, the only value", task.Quote(h.Default), defaultDeny)
	}

	for _, l := range []struct {
		name string
		list []string
	}{{"allow", h.Allow}, {"deny", h.Deny}} {
		for i, e := range l.list {
			if _, err := parseTarget(e); err != nil {
				return targetError(field, l.name, i, err)
			}
		}
	}

	for i, e := range h.NAT64 {
		if p, err := netip.ParsePrefix(e); err != nil || !isNAT64(p) || p != p.Masked() {
			return targetError(field, "nat64", i, fmt.Errorf("%s is not an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits", task.Quote(e)))
		}
	}

	return nil
}

// targetError returns the error of an entry.
func targetError(field, list string, i int, err error) error {
	return task.Invalid(task.CodeBadValue, fmt.Sprintf("%s.%s[%d]", field, list, i), "%s", err)
}
