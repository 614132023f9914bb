package task

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// httpFlags are the fields of an HTTP action whose flags are not in taskFields.
type httpFlags struct {
	action                    string // the method, the URL, or both
	headers, form, results    []string
	json, body                string
	bearer, basic, signature  string
	caRef, certRef            string
	keepBody                  bool
	method, url               string // from action and from the words of the command
	request                   []byte // the contents of json or body
	readsJSON, readsBody, set bool
}

// httpFields are the flags for fields of an HTTP action.
var httpFields = []taskFlag{
	{"expect", "action.http.expect.status", []string{}, "succeed only with these `STATUSES`, such as 200,3xx (default 2xx)"},
	{"expect-body", "action.http.expect.body", "", "succeed only if the response matches this `PATTERN` (RE2 syntax)"},
	{"idempotent", "action.http.idempotent", false, "the request may be repeated if its outcome is not known (default true for GET, HEAD, PUT, DELETE and OPTIONS)"},
	{"unsent-for", "action.http.unsent_for", "", "for this `DURATION` after the first attempt, attempts that could not reach the target do not count (default 10m)"},
	{"redirects", "action.http.redirects", 0, "follow at most `N` redirects, up to 5 (default 0)"},
	{"body-limit", "action.http.limit.body", "", "read at most this `SIZE` of the response, such as 4Mi (default 1Mi)"},
	{"per-target", "action.http.limit.per_target", 0, "send at most `N` requests at the same time from one node to the same host and port (default 100)"},
}

// bindFlags declares the flags.
func (h *httpFlags) bindFlags(flags *pflag.FlagSet) {
	flags.StringVar(&h.action, "http", "", "send a request instead of starting a process: --http `METHOD` URL, or --http URL")
	flags.StringArrayVar(&h.headers, "header", nil, "set a request header, as `'NAME: VALUE'`; 'NAME:' removes it; may be repeated")
	flags.StringVar(&h.json, "json", "", "send this `JSON`, or that in a file with @FILE, or @- for standard input")
	flags.StringArrayVar(&h.form, "form", nil, "send a form field, as `NAME=VALUE`; may be repeated")
	flags.StringVar(&h.body, "body", "", "send this `TEXT`, or that in a file with @FILE or @-, or a value of a secret with secret:NAME/KEY")
	flags.StringVar(&h.bearer, "bearer", "", "authenticate with a bearer token from the `SECRET` NAME/KEY")
	flags.StringVar(&h.basic, "basic", "", "authenticate with USER:PASSWORD from the `SECRET` NAME/KEY")
	flags.StringVar(&h.signature, "sign", "", "sign the body (Standard Webhooks) with the key from the `SECRET` NAME/KEY")
	flags.StringVar(&h.caRef, "target-ca", "", "trust the certificate authorities in the `SECRET` NAME/KEY instead of the node's")
	flags.StringVar(&h.certRef, "target-cert", "", "present the client certificate and key in the `SECRET` NAME/KEY")
	flags.StringArrayVar(&h.results, "result", nil, "record a value of the JSON response as a result, as `NAME=/POINTER`; may be repeated")
	flags.BoolVar(&h.keepBody, "keep-body", false, "store the response of successful attempts, too")

	for _, t := range httpFields {
		t.bindFlag(flags)
	}
}

// completeHTTPFlags registers completions for the values of flags.
func completeHTTPFlags(cmd *cobra.Command) {
	complete.RegisterFixed(cmd, "http", task.HTTPMethods()...)
	complete.RegisterFixed(cmd, "expect", "200", "201", "202", "204", "2xx", "3xx", "4xx", "5xx")
}

// isURL reports whether a word is the URL of a request. The name of a task cannot be one, because it contains no colon.
func isURL(word string) bool {
	return strings.Contains(word, "://") || strings.HasPrefix(word, task.SecretRefPrefix)
}

// readInput splits --http METHOD URL, takes the URL out of the words of the command, and reads the files that the flags
// name.
func (h *httpFlags) readInput(ctx context.Context, f *factory.Factory, cmd *cobra.Command, words []string) ([]string, error) {
	flags := cmd.Flags()
	h.set, h.readsJSON, h.readsBody = flags.Changed("http"), flags.Changed("json"), flags.Changed("body")

	if h.set {
		var err error
		if words, err = h.splitAction(cmd, words); err != nil {
			return nil, err
		}
	}

	switch {
	case h.readsJSON && h.readsBody, h.readsJSON && len(h.form) > 0, h.readsBody && len(h.form) > 0:
		return nil, failure.Usage("--json, --form and --body cannot be used together: a request has one body")
	case h.readsJSON:
		return words, h.readJSON(ctx, f)
	case h.readsBody:
		var err error
		h.request, err = readArgument(ctx, f, h.body)
		return words, err
	}

	return words, nil
}

// splitAction determines the method and the URL.
func (h *httpFlags) splitAction(cmd *cobra.Command, words []string) ([]string, error) {
	if cmd.ArgsLenAtDash() >= 0 {
		return nil, failure.Usage("a command after -- excludes --http")
	}

	switch parts := strings.Fields(h.action); {
	case len(parts) == 1 && isURL(parts[0]):
		h.url = parts[0]
	case len(parts) == 2 && isURL(parts[1]):
		h.method, h.url = parts[0], parts[1]
	case len(parts) == 1:
		h.method = parts[0]
	default:
		return nil, failure.Usage("--http %s: use --http METHOD URL, or --http URL", task.Quote(h.action))
	}

	h.method = strings.ToUpper(h.method)
	if methods := task.HTTPMethods(); h.method != "" && !slices.Contains(methods, h.method) {
		e := failure.Usage("--http %s: is neither a URL nor one of the methods %s", task.Quote(h.action), strings.Join(methods, ", "))
		if near := task.Nearest(h.method, methods); near != "" {
			return nil, e.WithHint("did you mean: --http %s", near)
		}
		return nil, e.WithHint("a URL begins with https:// or http://")
	}

	var rest []string
	for _, w := range words {
		switch {
		case !isURL(w):
			rest = append(rest, w)
		case h.url != "":
			return nil, failure.Usage("two URLs: %s and %s", task.Quote(h.url), task.Quote(w))
		default:
			h.url = w
		}
	}

	return rest, nil
}

// readJSON reads the value of --json.
func (h *httpFlags) readJSON(ctx context.Context, f *factory.Factory) error {
	b, err := readArgument(ctx, f, h.json)
	if err != nil {
		return err
	}

	var v any
	if err := task.DecodeStrict(b, &v); err != nil {
		return failure.Usage("--json: %s", err).WithHint(`quote it for the shell: --json '{"day": "${run.scheduled_time}"}'; or name a file: --json @order.json`)
	}

	h.request = b

	return nil
}

// readArgument returns the value of a flag: the text itself, or for @FILE the contents of a file.
func readArgument(ctx context.Context, f *factory.Factory, value string) ([]byte, error) {
	path, isFile := strings.CutPrefix(value, "@")
	if !isFile {
		return []byte(value), nil
	}

	in := f.In
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: "file", Message: path + ": " + failure.FileReason(err)}}
		}

		defer file.Close()

		in = file
	}

	b, err := factory.ReadPatiently(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, task.MaxHTTPAction+1)) })
	if err == nil && len(b) > task.MaxHTTPAction {
		return nil, failure.Usage("%s is larger than %d bytes, the maximum of an action", value, task.MaxHTTPAction).WithHint("store it as a secret, and use --body secret:NAME/KEY")
	}

	return b, err
}

// addTo adds the fields to a patch.
func (h *httpFlags) addTo(p map[string]any, flags *pflag.FlagSet) error {
	if h.set {
		if err := h.addAction(p, flags); err != nil {
			return err
		}
	}

	if err := h.addHeaders(p); err != nil {
		return err
	}
	if err := putPairs(p, "result", "action.http.results", h.results); err != nil {
		return err
	}
	if err := h.addBody(p); err != nil {
		return err
	}
	if err := h.addAuth(p, flags); err != nil {
		return err
	}

	for _, t := range []struct{ flag, path, ref string }{{"target-ca", "ca", h.caRef}, {"target-cert", "cert", h.certRef}} {
		if flags.Changed(t.flag) {
			putAtPath(p, "action.http.tls."+t.path, task.SecretRefPrefix+strings.TrimPrefix(t.ref, task.SecretRefPrefix))
		}
	}

	if flags.Changed("keep-body") {
		var keep any
		if h.keepBody {
			keep = task.HTTPOutputKeep
		}
		putAtPath(p, "action.http.output", keep)
	}

	return nil
}

// addAction adds the method and the URL, and removes the fields of other actions.
func (h *httpFlags) addAction(p map[string]any, flags *pflag.FlagSet) error {
	for _, name := range []string{"shell", "noop"} {
		if flags.Changed(name) {
			return failure.Usage("--http and --%s cannot be used together", name)
		}
	}

	action, _ := p["action"].(map[string]any)
	if action["process"] != nil {
		for _, t := range taskFields {
			if strings.HasPrefix(t.path, "action.process.") && flags.Changed(t.name) {
				return failure.Usage("--%s applies to a process, and cannot be used with --http", t.name)
			}
		}
		return failure.Usage("--env and --limit apply to a process, and cannot be used with --http")
	}

	putAtPath(p, "action.process", nil)
	putAtPath(p, "action.noop", nil)

	if h.url != "" {
		putAtPath(p, "action.http.url", h.url)
	}
	if h.method != "" {
		putAtPath(p, "action.http.method", h.method)
	}

	return nil
}

// addHeaders adds the headers.
func (h *httpFlags) addHeaders(p map[string]any) error {
	values := map[string]any{}
	for _, line := range h.headers {
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" {
			return failure.Usage("--header %s: use 'NAME: VALUE', or 'NAME:' to remove it", task.Quote(line))
		}
		if _, twice := values[name]; twice {
			return failure.Usage("--header %s: %s is given twice", task.Quote(line), task.Quote(name))
		}

		values[name] = value
		if value == "" {
			values[name] = nil
		}
	}

	if len(values) > 0 {
		putAtPath(p, "action.http.headers", values)
	}

	return nil
}

// addBody adds the body, and removes those of another form.
func (h *httpFlags) addBody(p map[string]any) error {
	set := func(form string, value any) {
		for _, other := range []string{"json", "form", "body"} {
			putAtPath(p, "action.http."+other, nil)
		}
		putAtPath(p, "action.http."+form, value)
	}

	switch {
	case h.readsJSON:
		set("json", json.RawMessage(h.request))
	case h.readsBody:
		set("body", string(h.request))
	case len(h.form) > 0:
		set("form", nil)
		return putPairs(p, "form", "action.http.form", h.form)
	}

	return nil
}

// addAuth adds the credentials, and removes those of another kind.
func (h *httpFlags) addAuth(p map[string]any, flags *pflag.FlagSet) error {
	kinds := []struct{ flag, field, ref string }{{"bearer", "bearer", h.bearer}, {"basic", "basic", h.basic}, {"sign", "signature", h.signature}}

	given := ""
	for _, k := range kinds {
		if !flags.Changed(k.flag) {
			continue
		}
		if given != "" {
			return failure.Usage("--%s and --%s cannot be used together", given, k.flag)
		}

		given = k.flag
		for _, other := range kinds {
			putAtPath(p, "action.http.auth."+other.field, nil)
		}
		putAtPath(p, "action.http.auth."+k.field, strings.TrimPrefix(k.ref, task.SecretRefPrefix))
	}

	return nil
}
