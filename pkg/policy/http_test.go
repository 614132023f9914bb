package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/task"
)

func TestHTTP_JudgesAddresses(t *testing.T) {
	everything := &HTTP{Allow: []string{"0.0.0.0/0", "::/0", "metadata.internal", "*.corp"}}
	tests := map[string]struct {
		rules *HTTP
		addr  string
		host  string
		want  string // a part of the refusal; "": allowed
	}{
		"public":                        {nil, "93.184.216.34:443", "example.com", ""},
		"public, IPv6":                  {nil, "[2606:2800:220:1::1]:443", "example.com", ""},
		"private":                       {nil, "10.1.2.3:80", "api.corp", ""},
		"private, 172.16/12":            {nil, "172.31.0.1:80", "api.corp", ""},
		"beside 172.16/12":              {nil, "172.32.0.1:80", "api.corp", ""},
		"private, 192.168/16":           {nil, "192.168.1.1:80", "api.corp", ""},
		"unique local":                  {nil, "[fd12::1]:80", "api.corp", ""},
		"loopback":                      {nil, "127.0.0.1:80", "localhost", "http.allow: address 127.0.0.1 is a loopback address"},
		"loopback, elsewhere in 127/8":  {nil, "127.8.9.1:80", "x", "loopback"},
		"loopback, IPv6":                {nil, "[::1]:80", "localhost", "loopback"},
		"shared address space":          {nil, "100.64.0.1:80", "x", "special"},
		"documentation":                 {nil, "192.0.2.1:80", "x", "special"},
		"benchmarking":                  {nil, "198.18.0.1:80", "x", "special"},
		"reserved":                      {nil, "240.0.0.1:80", "x", "special"},
		"documentation, IPv6":           {nil, "[2001:db8::1]:80", "x", "special"},
		"outside of global unicast":     {nil, "[4000::1]:80", "x", "special"},
		"metadata":                      {everything, "169.254.169.254:80", "metadata.internal", "never allowed"},
		"link-local":                    {everything, "169.254.1.1:80", "x", "never allowed"},
		"link-local, IPv6":              {everything, "[fe80::1]:80", "x", "never allowed"},
		"metadata of AWS":               {everything, "[fd00:ec2::254]:80", "x", "AWS"},
		"metadata of Google":            {everything, "[fd20:ce::254]:80", "x", "Google"},
		"beside metadata of AWS":        {nil, "[fd00:ec2::255]:80", "x", ""},
		"Azure":                         {everything, "168.63.129.16:80", "x", "Azure"},
		"Alibaba":                       {everything, "100.100.100.200:80", "x", "Alibaba"},
		"Oracle":                        {everything, "192.0.0.192:80", "x", "Oracle"},
		"multicast":                     {everything, "224.0.0.1:80", "x", "multicast"},
		"multicast, IPv6":               {everything, "[ff02::1]:80", "x", "multicast"},
		"unspecified":                   {everything, "0.0.0.0:80", "x", "not the address"},
		"unspecified, IPv6":             {everything, "[::]:80", "x", "not the address"},
		"broadcast":                     {everything, "255.255.255.255:80", "x", "broadcast"},
		"zone":                          {everything, "[fe80::1%eth0]:80", "x", "zone"},
		"mapped metadata":               {everything, "[::ffff:169.254.169.254]:80", "x", "never allowed"},
		"mapped loopback":               {nil, "[::ffff:127.0.0.1]:80", "x", "loopback"},
		"mapped private":                {nil, "[::ffff:10.0.0.1]:80", "x", ""},
		"compatible metadata":           {everything, "[::169.254.169.254]:80", "x", "never allowed"},
		"translated metadata":           {everything, "[::ffff:0:169.254.169.254]:80", "x", "never allowed"},
		"6to4 metadata":                 {everything, "[2002:a9fe:a9fe::1]:80", "x", "never allowed"},
		"6to4 by default":               {nil, "[2002:5db8:d822::1]:80", "x", "special"},
		"NAT64 metadata":                {everything, "[64:ff9b::169.254.169.254]:80", "x", "169.254.169.254 (64:ff9b::a9fe:a9fe)"},
		"NAT64 loopback":                {nil, "[64:ff9b::127.0.0.1]:80", "x", "loopback"},
		"NAT64 public":                  {nil, "[64:ff9b::93.184.216.34]:80", "x", ""},
		"NAT64 denied as a whole":       {&HTTP{Deny: []string{"64:ff9b::/96"}}, "[64:ff9b::93.184.216.34]:80", "x", "http.deny"},
		"local NAT64, not listed":       {everything, "[64:ff9b:1::93.184.216.34]:80", "x", "http.nat64"},
		"local NAT64":                   {&HTTP{NAT64: []string{"64:ff9b:1:2::/96"}}, "[64:ff9b:1:2::93.184.216.34]:80", "x", ""},
		"local NAT64, metadata":         {&HTTP{NAT64: []string{"64:ff9b:1:2::/96"}}, "[64:ff9b:1:2::169.254.169.254]:80", "x", "never allowed"},
		"own NAT64, 64 bits, metadata":  {&HTTP{NAT64: []string{"2001:470:1:2::/64"}}, "[2001:470:1:2:00a9:fea9:fe00:0]:80", "x", "169.254.169.254"},
		"own NAT64, 40 bits, metadata":  {&HTTP{NAT64: []string{"2001:470:1a00::/40"}}, "[2001:470:1aa9:fea9:00fe::]:80", "x", "169.254.169.254"},
		"own NAT64, the longest counts": {&HTTP{NAT64: []string{"2001:470::/32", "2001:470:1:2::/64"}}, "[2001:470:1:2:00a9:fea9:fe00:0]:80", "x", "169.254.169.254"},
		"allowed address":               {&HTTP{Allow: []string{"127.0.0.1"}}, "127.0.0.1:80", "x", ""},
		"allowed port":                  {&HTTP{Allow: []string{"127.0.0.1:8080"}}, "127.0.0.1:8080", "x", ""},
		"another port":                  {&HTTP{Allow: []string{"127.0.0.1:8080"}}, "127.0.0.1:8081", "x", "loopback"},
		"allowed prefix and port":       {&HTTP{Allow: []string{"[::/64]:8080"}}, "[::1]:8080", "x", ""},
		"allowed name":                  {&HTTP{Allow: []string{"localhost:8080"}}, "127.0.0.1:8080", "LocalHost.", ""},
		"another name":                  {&HTTP{Allow: []string{"localhost:8080"}}, "127.0.0.1:8080", "evil.example", "loopback"},
		"name below a domain":           {&HTTP{Allow: []string{"*.corp"}}, "100.64.0.1:80", "a.b.corp", ""},
		"the domain itself":             {&HTTP{Allow: []string{"*.corp"}}, "100.64.0.1:80", "corp", "special"},
		"a name that only ends alike":   {&HTTP{Allow: []string{"*.corp"}}, "100.64.0.1:80", "evilcorp", "special"},
		"denied name":                   {&HTTP{Deny: []string{"*.corp"}}, "10.0.0.1:80", "api.corp", "http.deny"},
		"deny precedes allow":           {&HTTP{Deny: []string{"10.0.0.0/8"}, Allow: []string{"10.1.0.0/16"}}, "10.1.0.1:80", "x", "entry 1"},
		"denied by default":             {&HTTP{Default: "deny"}, "93.184.216.34:443", "example.com", "http.allow: address 93.184.216.34 is not listed, and http.default is deny"},
		"denied by default, private":    {&HTTP{Default: "deny", Allow: []string{"api.corp"}}, "10.1.2.3:80", "x.corp", "not listed"},
		"denied by default, but listed": {&HTTP{Default: "deny", Allow: []string{"api.corp"}}, "10.1.2.3:80", "api.corp", ""},
		"listed, but denied":            {&HTTP{Default: "deny", Allow: []string{"api.corp"}, Deny: []string{"10.0.0.0/8"}}, "10.1.2.3:80", "api.corp", "http.deny"},
		"listed, but never allowed":     {&HTTP{Default: "deny", Allow: []string{"api.corp"}}, "169.254.169.254:80", "api.corp", "never allowed"},
		"NAT64, denied by default":      {&HTTP{Default: "deny", Allow: []string{"64:ff9b::/96"}}, "[64:ff9b::93.184.216.34]:80", "x", "not listed"},
		"NAT64, listed":                 {&HTTP{Default: "deny", Allow: []string{"93.184.216.34"}}, "[64:ff9b::93.184.216.34]:80", "x", ""},
		"an entry that is not valid":    {&HTTP{Deny: []string{"::ffff:10.0.0.0/104"}}, "93.184.216.34:80", "x", "http.deny"},
	}

	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.rules.Judge(netip.MustParseAddrPort(tt.addr), tt.host)

			var refusal *Refusal
			if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, &refusal) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestHTTP_Validates(t *testing.T) {
	valid := HTTP{
		Allow: []string{"10.0.0.0/8", "10.1.2.3", "10.1.2.3:80", "::1", "[::1]:80", "[::1]", "[fd00::/8]:443", "api.corp", "*.corp:8080", "localhost", "a_b.c"},
		Deny:  []string{"0.0.0.0/0"}, NAT64: []string{"64:ff9b:1::/48", "2001:db8:1::/96"},
	}
	if err := valid.Validate("http"); err != nil {
		t.Error(err)
	}
	if err := (*HTTP)(nil).Validate("http"); err != nil {
		t.Error(err)
	}

	for _, e := range []string{
		"", "10.1.2", "10.1.2.300", "10.0.0.0/33", "api.corp:0", "api.corp:65536", "api.corp:x", "api.corp:", "[::1", "[::1]80", "http://api.corp", "api.corp/x", "*", "a.*.corp",
		"a..b", "fe80::1%eth0", "::ffff:10.0.0.0/104", "user@api.corp", "bücher.example",
	} {
		var invalid *task.Error
		if err := (&HTTP{Deny: []string{"10.0.0.1", e}}).Validate("http"); !errors.As(err, &invalid) || invalid.Field != "http.deny[1]" {
			t.Errorf("entry %q: error %v", e, err)
		}
	}

	var invalid *task.Error
	if err := (&HTTP{Default: "none"}).Validate("http"); !errors.As(err, &invalid) || invalid.Field != "http.default" {
		t.Error(err)
	}
	if err := (&HTTP{Default: "deny"}).Validate("http"); err != nil {
		t.Error(err)
	}

	for _, e := range []string{"10.0.0.0/8", "2001:db8::/33", "2001:db8::1/96", "2001:db8::"} {
		var invalid *task.Error
		if err := (&HTTP{NAT64: []string{e}}).Validate("http"); !errors.As(err, &invalid) || invalid.Field != "http.nat64[0]" {
			t.Errorf("prefix %q: error %v", e, err)
		}
	}
}
