package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/backup"
	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
	"github.com/carillonhq/carillon/pkg/internal/backup/source"
	"github.com/carillonhq/carillon/pkg/internal/certs"
)

// created is the output of create.
type created struct {
	Path string `json:"path,omitempty"` // absent if the backup was written to stdout
	*backup.Manifest
}

// creator makes a backup.
type creator struct {
	*factory.Factory
	place

	dataDir string
	etcd    source.Etcd
}

// fileSuffix is how the name of a file with a backup ends.
const fileSuffix = ".zst"

// createCommand returns "carillon backup create".
func createCommand(f *factory.Factory) *cobra.Command {
	c := &creator{Factory: f}
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "create DIRECTORY | FILE | s3://BUCKET/PREFIX | -",
		Short: "Make a backup of the cluster",
		Long: "Make a backup of everything that the cluster stores in etcd, at one moment. In a directory, which must exist, a backup\n" +
			"consists of ID.db.zst and its manifest ID.json. A file, whose name must end with .zst, or - (stdout) contains the\n" +
			"manifest. The command reads back what it has stored. The manifest is written last, so an interrupted command leaves\n" +
			"nothing that looks like a backup.\n\n" +
			"By default, a node of the cluster makes the backup, for a token with the role backup and without a scope. A backup\n" +
			"contains the hashes of all tokens and the encrypted secrets: store it where only administrators can read it.\n\n" +
			"In a bucket, the names are the same as in a directory. Credentials and the address of the storage come from the\n" +
			"environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL_S3, AWS_REGION, AWS_CA_BUNDLE) or from\n" +
			"~/.aws/credentials, as for other tools.\n\n" +
			"If no node runs, use --data-dir on a host whose agent has stopped, or --etcd. --data-dir starts a copy of the data\n" +
			"directory, and does not change it. Of several members, use the backup that carillon backup list shows last.",
		Example: "  carillon backup create /backups\n  carillon backup create - | age -r KEY > backup.age\n" +
			"  carillon backup create /backups --data-dir /var/lib/carillon\n  carillon backup create /backups --etcd http://127.0.0.1:2379 --etcd-user root --etcd-password-file FILE",
		Args: factory.Args(1, 1, "the directory, file or bucket for the backup"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := factory.RefuseEmpty(cmd, "data-dir", "etcd", "etcd-user", "etcd-password-file", "etcd-ca", "etcd-cert", "etcd-key", "work"); err != nil {
				return err
			}
			if c.dataDir != "" && c.etcd.Endpoint != "" {
				return failure.Usage("--data-dir and --etcd cannot be used together")
			}
			if c.etcd.Endpoint == "" && (c.etcd.User != "" || c.etcd.PasswordFile != "" || c.etcd.Files != certs.Files{}) {
				return failure.Usage("the other flags of etcd require --etcd")
			}

			return explain(c.create(cmd.Context(), words[0]))
		},
	}, output.FormatTable, output.FormatJSON, output.FormatYAML)

	flags := cmd.Flags()
	flags.StringVar(&c.dataDir, "data-dir", "", "make the backup of this data `DIRECTORY` of an embedded member whose agent has stopped")
	flags.StringVar(&c.etcd.Endpoint, "etcd", "", "make the backup of the etcd member at this `URL`, without a node")
	flags.StringVar(&c.etcd.User, "etcd-user", "", "with --etcd: this `USER` of etcd, with the role root of etcd")
	flags.StringVar(&c.etcd.PasswordFile, "etcd-password-file", "", "with --etcd-user: `FILE` with the password (or CARILLON_ETCD_PASSWORD)")
	flags.StringVar(&c.etcd.Files.CA, "etcd-ca", "", "with --etcd: `FILE` with the CA of etcd's certificate (default: the system's)")
	flags.StringVar(&c.etcd.Files.Cert, "etcd-cert", "", "with --etcd: `FILE` with the client certificate")
	flags.StringVar(&c.etcd.Files.Key, "etcd-key", "", "with --etcd: `FILE` with the key of the client certificate")
	_ = cmd.MarkFlagDirname("data-dir") // the flag exists
	c.bindWork(cmd, "with --data-dir and --etcd: up to three times the database")
	c.bindPrefix(cmd, "with --data-dir and --etcd: `PREFIX` of Carillon's keys")

	return cmd
}

// create makes a backup and stores it at target.
func (c *creator) create(ctx context.Context, target string) error {
	if err := c.checkTarget(target); err != nil {
		return err
	}

	if c.dataDir == "" && c.etcd.Endpoint == "" {
		return c.fromAPI(ctx, target)
	}

	return c.fromSource(ctx, target)
}

// checkTarget refuses a target before the work begins.
func (c *creator) checkTarget(target string) error {
	if target == "-" {
		if _, tty := c.Terminal(c.Out); tty {
			return failure.Usage("a backup cannot be written to a terminal: redirect stdout, or name a file")
		}
		if c.Format != output.FormatTable {
			return failure.Usage("-o %s cannot be used with -, which writes the backup to stdout", c.Format)
		}
		return nil
	}

	if backup.IsBucket(target) {
		_, err := backup.OpenBucket(target, c.Env)
		return err
	}

	info, err := os.Stat(target)
	switch {
	case err == nil && !info.IsDir():
		return &failure.Error{Exit: failure.ExitConflict, Problem: failure.Problem{Code: "exists", Message: target + " exists already"}}
	case os.IsNotExist(err) && !strings.HasSuffix(target, fileSuffix):
		// Without this rule, the backup would become a file in the place of a directory that is not mounted.
		return failure.NotFound("the directory %s does not exist", target).
			WithHint("create it, or check whether it is mounted; the name of a file must end with " + fileSuffix)
	case err != nil && !os.IsNotExist(err):
		return err
	}

	return nil
}

// fromAPI receives a backup from a node.
func (c *creator) fromAPI(ctx context.Context, target string) error {
	api, err := c.Connect()
	if err != nil {
		return err
	}

	// A cancelled context ends the request, and so the work of the node.
	stream, err := api.Cluster.Backup(ctx)
	if err != nil {
		return err
	}

	defer stream.Close()

	m, _, err := backup.ReadFrame(stream)
	if err != nil {
		return err
	}

	return c.store(ctx, target, m, stream)
}

// fromSource makes a backup without a node.
func (c *creator) fromSource(ctx context.Context, target string) (err error) {
	work, remove, err := c.makeWork(c.Factory)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, remove()) }()

	options := source.Options{Prefix: c.prefix, Carillon: c.Version, Now: c.Now, Work: work}
	var packed *backup.Packed
	if c.dataDir != "" {
		packed, err = source.FromDataDir(ctx, c.dataDir, options)
	} else {
		if c.etcd.User != "" && c.etcd.PasswordFile == "" {
			c.etcd.Password = c.Env("CARILLON_ETCD_PASSWORD")
		}
		packed, err = source.FromEtcd(ctx, c.etcd, options)
	}
	if err != nil {
		return err
	}

	file, err := os.Open(packed.Path)
	if err != nil {
		return err
	}

	defer file.Close()

	return c.store(ctx, target, packed.Manifest, file)
}

// store stores a backup whose compressed snapshot is read from r, and reports it.
func (c *creator) store(ctx context.Context, target string, m *backup.Manifest, r io.Reader) error {
	r = &meter{Reader: r, total: m.PackedSize, note: c.Note, next: time.Now().Add(meterEvery)}

	var name string
	var stored *backup.Stored
	var err error
	info, missing := os.Stat(target)
	switch {
	case backup.IsBucket(target):
		var b *backup.Bucket
		if b, err = backup.OpenBucket(target, c.Env); err == nil {
			name, err = b.Store(ctx, m, r)
		}
	case target == "-":
		if err := backup.CopyStream(ctx, c.Out, m, r); err != nil {
			return err
		}
		c.Note("%s", describe(m))
		c.Note("%s", notIncluded(m))

		return nil
	case missing == nil && info.IsDir():
		stored, err = backup.Store(ctx, target, m, r)
	default:
		stored, err = backup.StoreFile(ctx, target, m, r)
	}
	if err != nil {
		return err
	}
	if stored != nil {
		name = stored.Name
	}

	if c.ForPeople() {
		c.Say("stored %s · %s", name, describe(m))
		c.SayNext("carillon backup verify %s", restore.QuoteShell(name))
		c.Say("%s", notIncluded(m))

		return nil
	}

	return output.EmitOne(&c.Printer, created{name, m}, name, nil)
}

// describe describes a backup in a line.
func describe(m *backup.Manifest) string {
	term := ""
	if m.RaftTerm > 0 {
		term = fmt.Sprintf("raft term %d, ", m.RaftTerm)
	}

	return fmt.Sprintf("%s, epoch %d, %srevision %d, %s", output.Plural(m.Tasks(), "task"), m.Epoch, term, m.Revision, output.Bytes(m.PackedSize))
}

// notIncluded says what no backup contains.
func notIncluded(m *backup.Manifest) string {
	keys := "the keys of secrets"
	if len(m.Keys) > 0 {
		keys = fmt.Sprintf("the keys of secrets (%s)", strings.Join(m.Keys, ", "))
	}

	return "not in the backup, so save them, too: " + keys + ", " + filepath.Join("DATA-DIR", "peer-certs") + " of the first member, agent.yaml, files of policies and TLS"
}

// meterEvery is how often a meter reports the progress.
const meterEvery = 10 * time.Second

// meter reports how much was read, at intervals.
type meter struct {
	io.Reader
	total, n int64
	note     func(format string, args ...any)
	next     time.Time
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.n += int64(n)
	if now := time.Now(); now.After(m.next) {
		m.next = now.Add(meterEvery)
		m.note("%s of %s", output.Bytes(m.n), output.Bytes(m.total))
	}

	return n, err
}
