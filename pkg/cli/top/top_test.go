package top

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// The addresses come from the board. A forged node record must not direct the token anywhere else.
func TestTop_TurnsOnlyToWhoIsProvedToBeANode(t *testing.T) {
	dir := t.TempDir()
	_, pair, err := certs.NewAuthority(certs.Request{Name: "ca", For: time.Hour, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}

	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, pair.Cert, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		first, ca, other string
		insecure, want   bool
	}{
		{"https://a:1", ca, "https://b:1", false, true},
		{"https://a:1", "", "https://b:1", false, false},
		{"https://a:1", ca, "http://b:1", false, false},
		{"https://a:1", ca, "http://127.0.0.1:1", false, false},
		{"http://127.0.0.1:1", "", "http://127.0.0.1:2", false, true},
		{"http://127.0.0.1:1", "", "http://b:2", false, false},
		{"http://127.0.0.1:1", "", "http://b:2", true, false},
		{"http://a:1", "", "http://b:2", true, false},
		{"http://127.0.0.1:1", ca, "https://b:1", false, false},
		{"unix:///run/x.sock", "", "http://127.0.0.1:1", false, false},
	} {
		d := factorytest.New("")
		d.ServerFlag, d.CAFileFlag, d.InsecureFlag = c.first, c.ca, c.insecure
		d.Vars["CARILLON_TOKEN"] = "the-token"

		first, err := d.ConnectFor(time.Second)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}

		if _, err := dialOther(d.Factory, first, c.other, time.Second); (err == nil) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
