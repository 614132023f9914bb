package secret

import (
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/secret"
)

// keyInfo is the JSON form of a key, without the key itself.
type keyInfo struct {
	ID       string `json:"id"`
	Encrypts bool   `json:"encrypts"`
}

// hostCommands returns the commands that need the files of a node.
func hostCommands(f *factory.Factory) []*cobra.Command { return []*cobra.Command{keyCommand(f)} }

// keyCommand returns "carillon secret key".
func keyCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Manage files with encryption keys, without a server",
		Long: "Create and change files with the keys that nodes use to encrypt secrets. Copy the file to each node that uses secrets,\n" +
			"set secret_keys to its path, and make it readable only for the daemon. The first key encrypts; all keys decrypt.\n\n" +
			"To replace a key, copy the file to all nodes after each of these steps: key new, key first, and key remove.\n" +
			"Run secret rotate --all -A before key remove. Running daemons reload the file when it changes.",
	}
	cmd.AddCommand(newKeyCommand(f), listKeysCommand(f),
		changeKeyCommand(f, "first", "Make a key the first one, which encrypts", "made %s the first in %s", secret.KeyFile.First),
		changeKeyCommand(f, "remove", "Remove a key; secrets that still use it become unreadable", "removed %s from %s", secret.KeyFile.Remove))
	factory.WithoutConfig(cmd)

	return cmd
}

// newKeyCommand returns "carillon secret key new".
func newKeyCommand(f *factory.Factory) *cobra.Command {
	atFront := false
	cmd := &cobra.Command{
		Use:   "new FILE",
		Short: "Create a key and add it to a file",
		Long: "Create a key and add it to a file. The file is created if it does not exist. The new key is the last one, so that it\n" +
			"encrypts nothing before all nodes have it. With --first, it becomes the first key.",
		Example: "  carillon secret key new /etc/carillon/secret-keys",
		Args:    factory.Args(1, 1, "the file"),
	}
	cmd.Flags().BoolVar(&atFront, "first", false, "encrypt with the new key immediately; for a single node")
	cmd.RunE = func(_ *cobra.Command, words []string) error {
		k, ring, err := secret.KeyFile(words[0]).New(atFront)
		if err != nil {
			return keyFault(words[0], err)
		}
		if !f.ForPeople() {
			return output.EmitOne(&f.Printer, keyInfo{k.ID(), ring.IDs()[0] == k.ID()}, k.ID(), nil)
		}

		f.Say("created key %s in %s", k.ID(), words[0])

		if ring.IDs()[0] == k.ID() {
			f.SayNext("copy the file to each node that uses secrets, readable only by its daemon, and set secret_keys: FILE")
		} else {
			f.SayNext("copy the file to all nodes, then run carillon secret key first %s %s", words[0], k.ID())
		}

		return nil
	}

	return cmd
}

// listKeysCommand returns "carillon secret key list".
func listKeysCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "list FILE",
		Short:   "List the ids of the keys in a file",
		Example: "  carillon secret key list /etc/carillon/secret-keys",
		Args:    factory.Args(1, 1, "the file"),
		RunE: func(_ *cobra.Command, words []string) error {
			ring, err := secret.KeyFile(words[0]).Ring()
			if err != nil {
				return keyFault(words[0], err)
			}
			return showKeys(f, ring)
		},
	}
}

// showKeys prints the ids of keys.
func showKeys(f *factory.Factory, ring secret.Ring) error {
	var list []keyInfo
	for i, id := range ring.IDs() {
		list = append(list, keyInfo{id, i == 0})
	}

	return output.EmitList(&f.Printer, list, func(k keyInfo) string { return k.ID }, func(bool) *output.Table {
		g := &output.Table{Headers: []string{"ID", "USE"}}

		for _, k := range list {
			use := "decrypts"
			if k.Encrypts {
				use = "encrypts, decrypts"
			}
			g.AddRow(k.ID, use)
		}

		return g
	})
}

// changeKeyCommand returns a command that changes a file of keys.
func changeKeyCommand(f *factory.Factory, verb, short, did string, do func(secret.KeyFile, string) (secret.Ring, error)) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " FILE ID",
		Short:   short,
		Example: "  carillon secret key " + verb + " /etc/carillon/secret-keys 5f0c9a1e",
		Args:    factory.Args(2, 2, "the file, or the key's id"),
		ValidArgsFunction: func(_ *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(done) == 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}

			var offers []complete.Offer
			if ring, err := secret.KeyFile(done[0]).Ring(); err == nil && len(done) == 1 {
				for _, id := range ring.IDs() {
					offers = append(offers, complete.Offer{Word: id})
				}
			}

			return complete.Matching(offers, nil, typed)
		},
		RunE: func(_ *cobra.Command, words []string) error {
			ring, err := do(secret.KeyFile(words[0]), words[1])
			if err != nil {
				return keyFault(words[0], err)
			}

			if f.ForPeople() {
				f.Say(did, "key "+words[1], words[0])
				return nil
			}

			return showKeys(f, ring)
		},
	}
}

// keyFault explains an error about a file of keys. It never contains a key.
func keyFault(path string, err error) error {
	f := &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: "key_file", Message: err.Error()}}

	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Exit, f.Message, f.Hint = failure.ExitNotFound, path+" does not exist", "carillon secret key new "+path
	case errors.Is(err, secret.ErrNoKey):
		f.Exit, f.Hint = failure.ExitNotFound, "carillon secret key list "+path
	case errors.Is(err, os.ErrPermission):
		f.Exit = failure.ExitAuth
	}

	return f
}
