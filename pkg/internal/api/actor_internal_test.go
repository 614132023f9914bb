package api

import (
	"strings"
	"testing"
)

func TestActor_NamesTokenAndCertificate(t *testing.T) {
	for want, c := range map[string]caller{
		"ann (token k3vq)":                     {who: "ann", token: "k3vq"},
		"ann (token k3vq, certificate laptop)": {who: "ann", token: "k3vq", certificate: "laptop"},
		"token k3vq":                           {who: "token k3vq", token: "k3vq"},
		"token k3vq (certificate laptop)":      {who: "token k3vq", token: "k3vq", certificate: "laptop"},
		"unix:uid=0":                           {who: "unix:uid=0"},
		"a?b?? (token k3vq)":                   {who: "a\nb\x1b\xff", token: "k3vq"},
		"ann ?token x? (token k3vq, certificate x? ?token y)": {who: "ann (token x)", token: "k3vq", certificate: "x) (token y"},
		"carillon (token k3vq)":                               {who: "carillon", token: "k3vq"}, // not what Carillon itself is called
		strings.Repeat("é", 64) + "… (token k3vq, certificate " + strings.Repeat("x", 128) + "…)": {
			who: strings.Repeat("é", 65), token: "k3vq", certificate: strings.Repeat("x", 500)},
	} {
		if got := c.actor(); got != want {
			t.Errorf("%+v acts as %q, want %q", c, got, want)
		}
	}
}
