// Package cert implements "carillon cert". It creates a CA and certificates of nodes and users, and shows the
// contents of certificates. It works only with files and needs no server.
package cert

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/batch"
	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

// The file names of the CA, and the validity of certificates in days.
const (
	certDir      = "certs"
	certCA       = "ca"
	certDays     = 365
	certDaysOfCA = 10 * 365
	certMostDays = 50 * 365
)

// Command returns "carillon cert".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Create certificates for nodes, clients and etcd",
		Long: "Create certificates for a cluster if you do not have your own CA. A server is not necessary. Do not store the directory,\n" +
			"and especially ca-key.pem, on the nodes: anyone who has this key can act as any node or client. You cannot revoke a\n" +
			"certificate. To invalidate one before it expires, create a new CA.",
	}
	formats := []string{output.FormatTable, output.FormatJSON, output.FormatYAML, output.FormatName}
	cmd.AddCommand(factory.LimitFormats(caCommand(f), formats...), factory.LimitFormats(nodeCommand(f), formats...), factory.LimitFormats(clientCommand(f), formats...),
		factory.LimitFormats(renewCommand(f), formats...), factory.LimitFormats(showCommand(f), output.FormatTable, output.FormatWide, output.FormatJSON, output.FormatJSONL, output.FormatYAML, output.FormatName))

	return cmd
}

// certFlags are the flags of all commands that create certificates.
type certFlags struct {
	dir   string
	days  int
	force bool
}

// bindFlags declares the flags.
func (f *certFlags) bindFlags(cmd *cobra.Command, days int) {
	cmd.Flags().StringVar(&f.dir, "dir", certDir, "`DIRECTORY` of the CA and its certificates")
	cmd.Flags().IntVar(&f.days, "days", days, "make the certificate valid for this number of `DAYS`")
	cmd.Flags().BoolVar(&f.force, "force", false, "overwrite existing files")
	_ = cmd.MarkFlagDirname("dir") // the flag exists
}

// newRequest checks the name and the flags, and that no file would be overwritten by accident.
func newRequest(f *factory.Factory, kind certs.Kind, name string, flags *certFlags) (certs.Request, error) {
	r := certs.Request{Kind: kind, Name: name, For: time.Duration(flags.days) * 24 * time.Hour, Now: f.Now()}

	if flags.days < 1 || flags.days > certMostDays {
		return r, failure.Usage("--days %d: must be between 1 and %d", flags.days, certMostDays)
	}

	if kind != certs.KindAuthority {
		if err := task.CheckName("name", name); err != nil {
			return r, err
		}
		if name == certCA {
			return r, failure.Usage("name: %s is reserved for the CA", task.Quote(name))
		}
	}

	file := name
	if kind == certs.KindAuthority {
		file = certCA
	}

	cert, key := certs.Paths(flags.dir, file)
	for _, path := range []string{cert, key} {
		if _, err := os.Lstat(path); !flags.force && !errors.Is(err, fs.ErrNotExist) {
			return r, &failure.Error{Exit: failure.ExitConflict, Problem: failure.Problem{Code: "exists", Message: path + " already exists",
				Hint: "to renew it, use carillon cert renew; to replace it, add --force"}}
		}
	}

	return r, nil
}

// caCommand returns "carillon cert ca".
func caCommand(f *factory.Factory) *cobra.Command {
	var flags certFlags
	name := ""
	cmd := &cobra.Command{
		Use:     "ca",
		Short:   "Create a CA: ca.pem to distribute, ca-key.pem to keep secret",
		Example: "  carillon cert ca --dir certs\n  carillon cert ca --dir certs --name \"Carillon of ACME\"",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.bindFlags(cmd, certDaysOfCA)
	cmd.Flags().StringVar(&name, "name", "Carillon CA", "common `NAME` of the CA")
	complete.Register(cmd, "name", cobra.NoFileCompletions)
	cmd.RunE = func(*cobra.Command, []string) error {
		if name == "" || len(name) > 64 {
			return failure.Usage("--name: must have 1 to 64 characters")
		}

		r, err := newRequest(f, certs.KindAuthority, name, &flags)
		if err != nil {
			return err
		}

		_, pair, err := certs.NewAuthority(r)
		if err != nil {
			return err
		}
		if err := writePair(f, pair, flags.dir, certCA, "created"); err != nil {
			return err
		}

		f.SayNext("carillon cert node NAME --host HOST --ip ADDRESS --dir %s", flags.dir)

		return nil
	}

	return cmd
}

// nodeCommand returns "carillon cert node".
func nodeCommand(f *factory.Factory) *cobra.Command {
	var flags certFlags
	var hosts, ips []string
	cmd := &cobra.Command{
		Use:   "node NAME",
		Short: "Create a certificate for a node or an etcd member",
		Long: "Create a certificate for a node: for its API, its calls to other nodes, and its connection to etcd. An etcd member can\n" +
			"also use it, for clients and for peers. The certificate is always valid for localhost. Without --host and --ip, it is\n" +
			"also valid for the host NAME. NAME is the common name, which etcd uses as the user name if it authenticates users by certificate.",
		Example: "  carillon cert node n1 --host n1.example.com --ip 10.0.0.1 --dir certs\n" +
			"  carillon cert node etcd1 --host etcd1 --ip 10.0.0.11 --days 90",
		Args: factory.Args(1, 1, "the node's name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.bindFlags(cmd, certDays)
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "host `NAME` that others use to connect; may be repeated")
	cmd.Flags().StringSliceVar(&ips, "ip", nil, "IP `ADDRESS` that others use to connect; may be repeated")
	complete.Register(cmd, "host", cobra.NoFileCompletions)
	complete.Register(cmd, "ip", cobra.NoFileCompletions)
	cmd.RunE = func(_ *cobra.Command, words []string) error {
		r, err := newRequest(f, certs.KindNode, words[0], &flags)
		if err != nil {
			return err
		}
		if r.Hosts, r.IPs, err = parseHosts(hosts, ips, words[0]); err != nil {
			return err
		}
		if err := issueCertificate(f, r, &flags, "created"); err != nil {
			return err
		}

		cert, key := certs.Paths(flags.dir, r.Name)
		f.SayNext("put %s, %s and ca.pem on the host: tls_cert, tls_key and tls_ca of its agent", cert, key)

		return nil
	}

	return cmd
}

// parseHosts returns the names and addresses of a node's certificate.
func parseHosts(hosts, ips []string, name string) (names []string, addresses []net.IP, err error) {
	if len(hosts)+len(ips) == 0 {
		hosts = []string{name}
	}

	seen := map[string]bool{}
	for _, h := range append(hosts, "localhost") {
		if !hostName(h) {
			return nil, nil, failure.Usage("--host %s: is not a host name, such as n1.example.com", task.Quote(h))
		}

		if !seen[h] {
			seen[h] = true
			names = append(names, h)
		}
	}

	for _, s := range append(ips, "127.0.0.1", "::1") {
		ip := net.ParseIP(s)
		if ip == nil {
			return nil, nil, failure.Usage("--ip %s: is not an IP address, such as 10.0.0.1", task.Quote(s))
		}

		if !seen[ip.String()] {
			seen[ip.String()] = true
			addresses = append(addresses, ip)
		}
	}

	return names, addresses, nil
}

// hostName reports whether s can be the host name of a certificate; *.example.com is valid.
func hostName(s string) bool {
	s = strings.TrimPrefix(s, "*.")
	if s == "" || len(s) > 253 || net.ParseIP(s) != nil {
		return false
	}

	for label := range strings.SplitSeq(s, ".") {
		odd := strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		})

		if odd || label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
	}

	return true
}

// clientCommand returns "carillon cert client".
func clientCommand(f *factory.Factory) *cobra.Command {
	var flags certFlags
	cmd := &cobra.Command{
		Use:   "client NAME",
		Short: "Create a certificate for an API client",
		Long: "Create a certificate for a person or a program that calls an API with tls_client_auth. It does not replace the token.\n" +
			"NAME is the common name, which etcd uses as the user name if it authenticates users by certificate.",
		Example: "  carillon cert client ann --dir certs\n  carillon task list --ca-file certs/ca.pem --cert-file certs/ann.pem --key-file certs/ann-key.pem",
		Args:    factory.Args(1, 1, "the client's name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.bindFlags(cmd, certDays)
	cmd.RunE = func(_ *cobra.Command, words []string) error {
		r, err := newRequest(f, certs.KindClient, words[0], &flags)
		if err != nil {
			return err
		}
		return issueCertificate(f, r, &flags, "created")
	}

	return cmd
}

// renewCommand returns "carillon cert renew".
func renewCommand(f *factory.Factory) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "renew NAME...",
		Short: "Renew certificates",
		Long: "Renew certificates with new keys, for the same names and the same validity period. The CA keeps its key, so the\n" +
			"certificates that it has signed stay valid. To renew everything, renew ca, copy ca.pem to all hosts, then renew the\n" +
			"rest. Agents reload files that have been replaced.",
		Example: "  carillon cert renew n1 n2 n3 --dir certs\n  carillon cert renew ca --dir certs",
		Args:    factory.Args(1, -1, "the name"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&dir, "dir", certDir, "`DIRECTORY` of the CA and its certificates")
	_ = cmd.MarkFlagDirname("dir") // the flag exists
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		return batch.ForEach(cmd.Context(), f, words, func(name string) error { return renewCertificate(f, dir, name) })
	}

	return cmd
}

// renewCertificate renews one certificate.
func renewCertificate(f *factory.Factory, dir, name string) error {
	if err := task.CheckName("name", name); err != nil {
		return err
	}

	if name == certCA {
		ca, err := readAuthority(dir)
		if err != nil {
			return err
		}

		_, pair, err := ca.Renewed(f.Now())
		if err != nil {
			return err
		}

		return writePair(f, pair, dir, certCA, "renewed")
	}

	path, _ := certs.Paths(dir, name)
	list, err := readCertificates(path)
	if err != nil {
		return err
	}

	return issueCertificate(f, certs.Again(list[0], f.Now()), &certFlags{dir: dir}, "renewed")
}

// issueCertificate signs and stores a certificate.
func issueCertificate(f *factory.Factory, r certs.Request, flags *certFlags, done string) error {
	ca, err := readAuthority(flags.dir)
	if err != nil {
		return err
	}

	pair, err := ca.Issue(r)
	if err != nil {
		return err
	}

	return writePair(f, pair, flags.dir, r.Name, done)
}

// readAuthority reads the CA of a directory.
func readAuthority(dir string) (*certs.Authority, error) {
	pair, err := certs.ReadPair(dir, certCA)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failure.NotFound("no CA in %s", dir).WithHint("to create one: carillon cert ca --dir %s; if it is in another directory, use --dir", dir)
	}
	if err != nil {
		return nil, err
	}

	ca, err := certs.ReadAuthority(pair)
	if err != nil {
		path, _ := certs.Paths(dir, certCA)
		return nil, &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeFailure, Message: path + ": " + err.Error()}}
	}

	return ca, nil
}

// writePair stores a certificate with its key, and prints it.
func writePair(f *factory.Factory, p certs.Pair, dir, name, done string) error {
	if err := p.Write(dir, name); err != nil {
		return err
	}

	path, key := certs.Paths(dir, name)
	list, err := certs.Parse(p.Cert)
	if err != nil {
		return err
	}

	c := certificateOf(path, list[0])

	if f.ForPeople() {
		words := ""
		if len(c.Names) > 0 {
			words = " · for " + strings.Join(c.Names, ", ")
		}

		f.Say("%s %s, key %s%s · expires %s", done, path, key, f.Plain(words), c.NotAfter.UTC().Format(time.DateOnly))

		return nil
	}

	return output.EmitOne(&f.Printer, c, path, nil)
}
