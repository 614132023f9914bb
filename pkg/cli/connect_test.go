package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
)

func TestToken_InClearTextIsAcceptedByFlagOrContext(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	write := func(insecure string) {
		t.Helper()
		text := "current: prod\ncontexts:\n  prod: {server: \"http://a:1\", token: the-token" + insecure + "}\n"
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	connect := func(edit func(*factorytest.TestFactory)) error {
		d := factorytest.New("")
		d.Vars["CARILLON_CONFIG"] = config

		if edit != nil {
			edit(d)
		}

		_, err := d.Connect()

		return err
	}

	write("")

	if err := connect(nil); err == nil || !strings.Contains(err.Error(), "use https://") {
		t.Errorf("by default: %v", err)
	}

	if err := connect(func(d *factorytest.TestFactory) { d.InsecureFlag = true }); err != nil {
		t.Errorf("with --insecure: %v", err)
	}

	write(", insecure: true")

	if err := connect(nil); err != nil {
		t.Errorf("with the context's word: %v", err)
	}

	if err := connect(func(d *factorytest.TestFactory) { d.ServerFlag, d.Vars["CARILLON_TOKEN"] = "http://b:1", "another" }); err == nil {
		t.Error("the context's word counts for another server")
	}
}
