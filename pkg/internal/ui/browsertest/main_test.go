//go:build browser

package browsertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// browser is the Chromium of the tests. Its tabs share the session that TestMain has begun.
type browser struct {
	ctx  context.Context
	base string
}

var (
	fixture *cluster
	chrome  *browser
	shots   string // the directory for screenshots

	program = flag.String("carillon", "", "the program to test; required")
	output  = flag.String("shots", "", "the directory for screenshots; required")
)

// TestMain starts one cluster and one browser for all tests.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if *program == "" || *output == "" {
		fmt.Fprintln(os.Stderr, "run these tests with: make ui-test")
		return 2
	}
	shots = *output

	dir, err := os.MkdirTemp("", "carillon-ui-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fixture, err = startCluster(ctx, *program, dir)
	defer fixture.stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the test cluster:", err)
		return 1
	}

	chrome, err = startBrowser(ctx, filepath.Join(dir, "chromium"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "the browser:", err)
		return 1
	}
	defer chrome.stop()

	return m.Run()
}

// startBrowser starts Chromium with a profile of its own, and signs it in with a login link.
func startBrowser(ctx context.Context, profile string) (*browser, error) {
	path := os.Getenv("CHROMIUM")
	if path == "" {
		var err error
		if path, err = exec.LookPath("chromium"); err != nil {
			return nil, fmt.Errorf("%w: install Debian's package chromium, or set CHROMIUM", err)
		}
	}

	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", false), chromedp.Flag("hide-scrollbars", true))
	allocator, _ := chromedp.NewExecAllocator(ctx, opts...)
	tab, _ := chromedp.NewContext(allocator)
	b := &browser{ctx: tab, base: "http://" + fixture.address}

	link, err := fixture.api.Sessions.CreateLink(ctx)
	if err != nil {
		return nil, err
	}

	// A link is used only by pressing its button.
	return b, chromedp.Do(tab, chromedp.Navigate(b.base+link.Path), chromedp.Click(chromedp.CSS("main button")), chromedp.WaitVisible(chromedp.CSS("nav")))
}

// stop ends the browser.
func (b *browser) stop() { _ = chromedp.Cancel(b.ctx) } // an error means that it has ended already
