package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/peercerts"
	"github.com/carillonhq/carillon/pkg/task"
)

// agentDataDir is the default data directory of an agent.
const agentDataDir = "/var/lib/carillon"

// maxTokenLife is the maximum validity of a join token.
const maxTokenLife = 7 * 24 * time.Hour

// joinToken is the JSON form of a join token.
type joinToken struct {
	Member  string    `json:"member"`
	Token   string    `json:"token"` // a secret
	Expires task.Time `json:"expires_at"`
}

// hostCommands returns the commands that need the files of a node.
func hostCommands(f *factory.Factory) []*cobra.Command {
	return []*cobra.Command{factory.LimitFormats(joinTokenCommand(f), output.FormatTable, output.FormatJSON, output.FormatYAML)}
}

// joinTokenCommand returns "carillon cluster join-token".
func joinTokenCommand(f *factory.Factory) *cobra.Command {
	var peer, dataDir string
	validFor := peercerts.TokenLife
	cmd := &cobra.Command{
		Use:   "join-token NAME --peer-url URL",
		Short: "Print a token that lets an agent join the embedded etcd",
		Long: "Print a token that gives another agent its certificate for the embedded etcd cluster. Run the command as root\n" +
			"on the host of the first member, whose data directory contains the CA. The agent on that host does not have to run.\n\n" +
			"Put the token into the file join-token in the data directory of NAME. The agent reads the file when it starts, or\n" +
			"while it waits for the file, and deletes it. If the member already has a certificate, the token renews it at the next\n" +
			"start.\n\n" +
			"The token is a secret. It contains the private key of the member, and anyone who has it can act as that member.\n" +
			"It is valid for the duration of --expires.",
		Example: "  sudo carillon cluster join-token n2 --peer-url https://10.0.0.2:2380 | ssh n2 sudo tee /var/lib/carillon/join-token >/dev/null",
		Args:    factory.Args(1, 1, "the agent's name"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, words []string) error {
			if err := task.CheckName("name", words[0]); err != nil {
				return err
			}

			u, err := url.Parse(peer)
			if err != nil || u.Scheme != "https" || u.Hostname() == "" {
				return failure.Usage("--peer-url: must be an https URL at which the other members reach it, such as https://10.0.0.2:2380")
			}
			if validFor < time.Minute || validFor > maxTokenLife {
				return failure.Usage("--expires %s: must be between 1m and %s", task.Duration(validFor), task.Duration(maxTokenLife))
			}

			token, expires, err := peercerts.NewToken(dataDir, peercerts.Member{Name: words[0], Host: u.Hostname()}, validFor, f.Now())
			if err != nil {
				return joinTokenFault(dataDir, err)
			}
			// Only the token is printed, so that it can be piped to another host.
			if f.ForPeople() {
				return f.Print(token + "\n")
			}

			return output.EmitOne(&f.Printer, joinToken{words[0], token, task.At(expires)}, words[0], nil)
		},
	}

	cmd.Flags().StringVar(&peer, "peer-url", "", "`URL` at which the other members reach the new member, as in initial_cluster: https://HOST:PORT")
	cmd.Flags().StringVar(&dataDir, "data-dir", agentDataDir, "data `DIRECTORY` of the agent on this host")
	factory.DurationVar(cmd.Flags(), &validFor, "expires", validFor, "make the token valid for this `DURATION`")
	_ = cmd.MarkFlagDirname("data-dir") // the flag exists
	complete.Register(cmd, "peer-url", cobra.NoFileCompletions)
	complete.Register(cmd, "expires", cobra.NoFileCompletions)
	factory.WithoutConfig(cmd)

	return cmd
}

// joinTokenFault explains an error.
func joinTokenFault(dataDir string, err error) error {
	f := &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: failure.CodeFailure, Message: err.Error()}}

	switch {
	case errors.Is(err, peercerts.ErrNoCA):
		f.Exit, f.Message = failure.ExitNotFound, fmt.Sprintf("%s does not contain the CA of the etcd members", dataDir)
		f.Hint = "the agent listed first in initial_cluster creates it when it starts: run this command on its host, with its data directory in --data-dir"
	case errors.Is(err, fs.ErrPermission):
		f.Exit, f.Hint = failure.ExitAuth, "run the command as the user of the agent, usually root"
	}

	return f
}
