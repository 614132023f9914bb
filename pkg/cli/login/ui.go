package login

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// loginURL is a login link as programs get it.
type loginURL struct {
	URL   string     `json:"url"`
	Until *task.Time `json:"until,omitempty"` // nil if it is the page on which to sign in, not a link
}

// UICommand returns "carillon ui".
func UICommand(f *factory.Factory) *cobra.Command {
	var onlyPrint bool
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "ui",
		Short: "Open the Web UI in a browser",
		Long: "Open the Web UI in a browser, logged in with your token. The command creates a login link, which works once, within\n" +
			"ten minutes. The session in the browser ends after eight hours, when you log out there, or when your token is deleted.\n" +
			"If you use a session yourself, of \"carillon login --provider\", the command opens the page on which you sign in.\n\n" +
			"Root on the host of a node needs no token, over the node's unix socket: \"sudo carillon ui\". That session ends after an\n" +
			"hour, and only this node accepts it.\n\n" +
			"Without a graphical desktop, or with --print, the command prints the link. The first person who opens it is logged in as you.",
		Example: "  carillon ui\n  carillon ui --print\n  sudo carillon ui",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error { return openUI(cmd.Context(), f, onlyPrint) },
	}, output.FormatTable, output.FormatJSON, output.FormatYAML)
	cmd.Flags().BoolVar(&onlyPrint, "print", false, "print the link instead of opening it")

	return cmd
}

func openUI(ctx context.Context, f *factory.Factory, onlyPrint bool) error {
	c, err := f.Connect()
	if err != nil {
		return err
	}

	u, note, err := createLink(ctx, c)
	if err != nil {
		return err
	}

	base, _, _ := strings.Cut(u.URL, client.LoginPath)
	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, u, u.URL, nil)
	}

	if !onlyPrint && hasDesktop(f) {
		if err := openBrowser(f, u.URL); err == nil {
			f.Note("opening %s/ui in your browser", base)
			return nil
		}
	}

	f.Note("%s", note)
	if line := tunnelLine(base); line != "" && !hasDesktop(f) {
		f.Note("if your browser is on another computer, run this there first: %s", line)
	}

	return f.Print(u.URL + "\n")
}

// tunnelLine returns the ssh command that makes a loopback address of this host reachable at the same address of another
// computer, or "" if others can reach the address anyway.
func tunnelLine(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Port() == "" {
		return ""
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return ""
	}

	host, err := os.Hostname()
	if err != nil {
		host = "HOST"
	}

	return "ssh -L " + u.Port() + ":" + u.Host + " " + host
}

// createLink returns a login link, and the note to print with it. A caller who cannot have one, such as one with a
// session of an identity provider, gets the page on which to sign in. A browser cannot open the unix socket, so there the
// node says at which address it serves browsers.
func createLink(ctx context.Context, c *client.Client) (u loginURL, note string, err error) {
	link, err := c.Sessions.CreateLink(ctx)
	base := strings.TrimSuffix(c.Server(), "/") // the server that answered, if there are several
	isSocket := strings.HasPrefix(base, "unix://")

	var remote *client.Error
	switch {
	case !isSocket && errors.As(err, &remote) && remote.Status == http.StatusForbidden:
		return loginURL{URL: base + client.LoginPath}, "sign in there, because " + output.OneLine(remote.Message) + ":", nil
	case err != nil:
		return u, "", err
	}

	u = loginURL{URL: base + link.Path, Until: &link.Until}
	if isSocket {
		u.URL = link.URL
	}
	if u.URL == "" {
		return u, "", &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{
			Code: failure.CodeFailure, Message: "a browser cannot open the unix socket " + base + ", and the node listens on no other address",
			Hint: "set listen in the settings of the node, for example to 127.0.0.1:7070"}}
	}

	return u, "open this link within ten minutes; it works once, and logs in the first person who opens it:", nil
}

// hasDesktop reports whether there is a desktop on which a browser can open. Browsers refuse to run as root, and should not.
func hasDesktop(f *factory.Factory) bool {
	if os.Geteuid() == 0 {
		return false
	}
	return runtime.GOOS == "darwin" || runtime.GOOS == "windows" || f.Env("DISPLAY") != "" || f.Env("WAYLAND_DISPLAY") != ""
}

// openBrowser opens a URL in the browser of the desktop. Other users of the host can read the arguments of every program, so
// the argument is a file that only this user can read. Its page opens the URL.
func openBrowser(f *factory.Factory, url string) error {
	dir := f.Env("XDG_RUNTIME_DIR")
	if dir == "" {
		var err error
		if dir, err = os.UserCacheDir(); err != nil {
			return err
		}
	}

	path := filepath.Join(dir, "carillon-login.html")
	page := fmt.Sprintf("<!doctype html>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"refresh\" content=\"0; url=%[1]s\">\n<title>Carillon</title>\n<a href=\"%[1]s\">Log in</a>\n", html.EscapeString(url))
	if err := writeNewFile(path, page); err != nil {
		return err
	}

	opener := []string{"xdg-open"}
	switch runtime.GOOS {
	case "darwin":
		opener = []string{"open"}
	case "windows":
		opener = []string{"rundll32", "url.dll,FileProtocolHandler"}
	}

	return exec.Command(opener[0], append(opener[1:], path)...).Start() // it may run as long as the browser does
}

// writeNewFile writes a file that only this user can read, in the place of an earlier one.
func writeNewFile(path, content string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}

	_, err = file.WriteString(content)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}

	return err
}
