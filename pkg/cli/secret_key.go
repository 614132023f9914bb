package cli

import (
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/secret"
)

// keyShown is what is told of a key.
type keyShown struct {
	ID       string `json:"id"`
	Encrypts bool   `json:"encrypts"`
}

func (a *app) secretKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Files of keys, which nodes have as secret_keys; without a server",
		Long: "Make and change files of keys under which nodes encrypt secrets: bring the file to each node that is to use them, as\n" +
			"the setting secret_keys, for its daemon alone to read. The first key encrypts, all decrypt.\n\n" +
			"To change the key: key new, the file to all nodes; key first, the file to all nodes; secret rotate --all -A; key\n" +
			"remove, the file to all nodes. Running daemons take each file as it comes.",
	}
	cmd.AddCommand(a.secretKeyNew(), a.secretKeyList(),
		a.secretKeyChange("first", "Have a key encrypt from now on", "made %s the first in %s", secret.KeyFile.First),
		a.secretKeyChange("remove", "Remove a key: what is under it yet cannot be read any more", "removed %s from %s", secret.KeyFile.Remove))
	withoutConfig(cmd)
	return cmd
}

func (a *app) secretKeyNew() *cobra.Command {
	atFront := false
	cmd := &cobra.Command{
		Use:     "new FILE",
		Short:   "Make a key, in a file that is made if it is not there",
		Long:    "Make a key and add it to a file, which is made if it is not there. It is the last, so that nothing is encrypted under\nit before all nodes have it; with --first it is the first.",
		Example: "  carillon secret key new /etc/carillon/secret-keys",
		Args:    args(1, 1, "the file"),
	}
	cmd.Flags().BoolVar(&atFront, "first", false, "it encrypts at once: for a node that is alone")
	cmd.RunE = func(_ *cobra.Command, words []string) error {
		k, ring, err := secret.KeyFile(words[0]).New(atFront)
		if err != nil {
			return keyFault(words[0], err)
		}
		if !a.ForPeople() {
			return output.EmitOne(&a.Printer, keyShown{k.ID(), ring.IDs()[0] == k.ID()}, k.ID(), nil)
		}
		a.Say("made key %s in %s", k.ID(), words[0])
		if ring.IDs()[0] == k.ID() {
			a.next("the file to each node that is to use secrets, for its daemon alone to read, and secret_keys: FILE in its settings")
		} else {
			a.next("the file to all nodes; then carillon secret key first %s %s", words[0], k.ID())
		}
		return nil
	}
	return cmd
}

func (a *app) secretKeyList() *cobra.Command {
	return &cobra.Command{
		Use:     "list FILE",
		Short:   "List the ids of the keys in a file",
		Example: "  carillon secret key list /etc/carillon/secret-keys",
		Args:    args(1, 1, "the file"),
		RunE: func(_ *cobra.Command, words []string) error {
			ring, err := secret.KeyFile(words[0]).Ring()
			if err != nil {
				return keyFault(words[0], err)
			}
			return a.showKeys(ring)
		},
	}
}

func (a *app) showKeys(ring secret.Ring) error {
	var list []keyShown
	for i, id := range ring.IDs() {
		list = append(list, keyShown{id, i == 0})
	}
	return output.EmitList(&a.Printer, list, func(k keyShown) string { return k.ID }, func(bool) *output.Table {
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

func (a *app) secretKeyChange(verb, short, did string, do func(secret.KeyFile, string) (secret.Ring, error)) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " FILE ID",
		Short:   short,
		Example: "  carillon secret key " + verb + " /etc/carillon/secret-keys 5f0c9a1e",
		Args:    args(2, 2, "the file, or the key's id"),
		ValidArgsFunction: func(_ *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(done) == 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			var offers []offer
			if ring, err := secret.KeyFile(done[0]).Ring(); err == nil && len(done) == 1 {
				for _, id := range ring.IDs() {
					offers = append(offers, offer{Word: id})
				}
			}
			return begun(offers, nil, typed)
		},
		RunE: func(_ *cobra.Command, words []string) error {
			ring, err := do(secret.KeyFile(words[0]), words[1])
			if err != nil {
				return keyFault(words[0], err)
			}
			if a.ForPeople() {
				a.Say(did, "key "+words[1], words[0])
				return nil
			}
			return a.showKeys(ring)
		},
	}
}

// keyFault is what is wrong with a file of keys; no key is in it.
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
