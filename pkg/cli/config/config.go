// Package config implements "carillon config": the contexts in the user's configuration, and the settings that
// a command would use. Package settings reads and writes the file.
package config

import (
	"bufio"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/settings"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// Command returns "carillon config".
func Command(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Manage contexts: named clusters and the one in use"}
	use, set, remove := useCommand(f), setCommand(f), deleteCommand(f)
	path := pathCommand(f)
	factory.WithoutConfig(use, set, remove, path)
	cmd.AddCommand(showCommand(f), listCommand(f), use, set, remove, path)

	return cmd
}

// origin is a setting with its value and its origin.
type origin struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Origin  string `json:"origin"`
}

// showCommand returns "carillon config show".
func showCommand(f *factory.Factory) *cobra.Command {
	var withOrigin bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the settings that a command would use",
		Long: "Show the server, namespace, token file and certificates that a command with the same flags would use. Flags\n" +
			"override the environment, and the environment overrides the configuration. The token itself is never shown.",
		Example: "  carillon config show --origin\n  carillon config show --context prod -o json",
		Args:    factory.Args(0, 0, ""),
	}
	cmd.Flags().BoolVar(&withOrigin, "origin", false, "also show the origin of each setting")
	cmd.RunE = func(*cobra.Command, []string) error {
		s, err := f.Settings()
		if err != nil {
			return err
		}

		list, err := settingOrigins(f, s)
		if err != nil {
			return err
		}

		return output.EmitList(&f.Printer, list, func(o origin) string { return o.Setting + "=" + o.Value }, func(wide bool) *output.Table {
			g := &output.Table{Headers: []string{"SETTING", "VALUE"}}
			if withOrigin = withOrigin || wide; withOrigin {
				g.Headers = append(g.Headers, "ORIGIN")
			}

			for _, o := range list {
				row := []string{o.Setting, output.OneLine(cmp.Or(o.Value, f.NoValue()))}
				if withOrigin {
					row = append(row, output.OneLine(o.Origin))
				}
				g.AddRow(row...)
			}

			return g
		})
	}

	return cmd
}

// settingOrigins returns all settings of commands that call a server.
func settingOrigins(f *factory.Factory, s *settings.Settings) ([]origin, error) {
	server := f.ServerSetting(s)
	c, err := client.New(client.Config{Server: server.Value})
	if err != nil {
		return nil, err
	}

	server.Value = strings.Join(c.Servers(), ",")
	secret, file := f.TokenSetting(s)
	token := settings.Setting{Value: file.Value, Origin: file.Origin}
	if secret.Value != "" {
		token = settings.Setting{Value: "(set)", Origin: secret.Origin}
	}

	readOnly := settings.Setting{Value: "false", Origin: settings.ByDefault}
	if s.ReadOnly {
		readOnly = settings.Setting{Value: "true", Origin: "context " + s.Name}
	}

	list := []origin{}
	for _, o := range []struct {
		name string
		settings.Setting
	}{
		{"context", settings.Setting{Value: s.Name, Origin: s.ChosenBy}}, {"server", server}, {"namespace", f.NamespaceSetting(s)}, {"token", token},
		{"ca_file", f.FileSetting(s, "--ca-file", f.CAFileFlag, s.CAFile)}, {"cert_file", f.FileSetting(s, "--cert-file", f.CertFileFlag, s.CertFile)},
		{"key_file", f.FileSetting(s, "--key-file", f.KeyFileFlag, s.KeyFile)}, {"read_only", readOnly}, {"insecure", f.InsecureSetting(s)},
	} {
		list = append(list, origin{o.name, o.Value, cmp.Or(o.Origin, settings.ByDefault)})
	}

	return list, nil
}

// listedContext is a context in lists, without its token.
type listedContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	settings.Context
	Token    *struct{} `json:"token,omitempty"` // shadows the embedded field, so that the token is not printed
	HasToken bool      `json:"has_token"`
}

// newListedContext returns a context for a list.
func newListedContext(f settings.File, name, current string) listedContext {
	c := f.Contexts[name]
	return listedContext{Name: name, Current: name == current, Context: c, HasToken: c.Token != "" || c.TokenFile != ""}
}

// contextName returns the name of a context.
func contextName(c listedContext) string { return c.Name }

// listCommand returns "carillon config list".
func listCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List contexts",
		Example: "  carillon config list\n  carillon config list -o name",
		Args:    factory.Args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			s, err := f.Settings()
			if err != nil {
				return err
			}

			list := []listedContext{}
			for _, name := range slices.Sorted(maps.Keys(s.File.Contexts)) {
				list = append(list, newListedContext(s.File, name, s.Name))
			}

			return output.EmitList(&f.Printer, list, contextName, func(bool) *output.Table { return contextGrid(f, list) })
		},
	}
}

// contextGrid returns the table of contexts.
func contextGrid(f *factory.Factory, list []listedContext) *output.Table {
	g := &output.Table{Headers: []string{"", "NAME", "SERVER", "NAMESPACE", "TOKEN", "READ ONLY"},
		Empty: "no contexts; create one with: carillon config set NAME server=https://…"}
	yes := map[bool]string{true: "yes", false: f.NoValue()}

	for _, c := range list {
		mark := ""
		if c.Current {
			mark = "*"
		}
		g.AddRow(mark, c.Name, cmp.Or(c.Server, client.DefaultServer), cmp.Or(c.Namespace, task.Defaults().Namespace), yes[c.HasToken], yes[c.ReadOnly])
	}

	return g
}

// changeConfig changes the configuration, and prints a note if comments were lost.
func changeConfig(f *factory.Factory, change func(*settings.File) error) (settings.File, error) {
	file, anew, err := f.ChangeFile(change)
	if anew {
		f.Note("%s was rewritten; its comments are lost", f.Path())
	}
	return file, err
}

// useCommand returns "carillon config use".
func useCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:               "use NAME",
		Short:             "Select the context that commands use",
		Example:           "  carillon config use prod",
		Args:              factory.Args(1, 1, "the context"),
		ValidArgsFunction: complete.Contexts(f),
		RunE: func(_ *cobra.Command, words []string) error {
			name := words[0]
			file, err := changeConfig(f, func(file *settings.File) error {
				if _, ok := file.Contexts[name]; !ok {
					return (&settings.Settings{Path: f.Path(), File: *file}).UnknownContext(name)
				}
				file.Current = name
				return nil
			})

			if err != nil {
				return err
			}

			f.Say("context %s · %s", name, cmp.Or(file.Contexts[name].Server, client.DefaultServer))

			return showContext(f, newListedContext(file, name, file.Current))
		},
	}
}

// showContext prints a context for programs. The text for people was printed before.
func showContext(f *factory.Factory, c listedContext) error {
	if f.ForPeople() {
		return nil
	}
	return output.EmitOne(&f.Printer, c, c.Name, nil)
}

// setCommand returns "carillon config set".
func setCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME KEY=VALUE...",
		Short: "Create or change a context",
		Long: "Create a context or change these fields of it: " + strings.Join(settings.FieldNames(), ", ") + ".\n" +
			"KEY= clears a field. token=- reads the token from standard input, so that it is not in the history of your shell.\n" +
			"Prefer token_file, with a file that only you can read. The command stores absolute paths, and writes the file with\n" +
			"mode 0600.",
		Example: `  carillon config set prod server=https://carillon.example.com:7070 ca_file=ca.crt token_file=~/.config/carillon/prod.token
  carillon config set prod namespace=billing read_only=true
  carillon config set prod read_only=`,
		Args:              factory.Args(2, -1, "the context's name, or KEY=VALUE"),
		ValidArgsFunction: complete.ContextSet(f),
		RunE: func(cmd *cobra.Command, words []string) error {
			name := words[0]
			if err := task.CheckName("context", name); err != nil {
				return err
			}

			made := false
			file, err := changeConfig(f, func(file *settings.File) error {
				c, there := file.Contexts[name]
				made = !there

				for _, word := range words[1:] {
					if err := setField(cmd.Context(), f, &c, word); err != nil {
						return err
					}
				}

				if file.Contexts == nil {
					file.Contexts = map[string]settings.Context{}
				}

				file.Contexts[name] = c

				return task.Under("contexts."+name, c.Validate())
			})

			if err != nil {
				return err
			}

			switch {
			case made && file.Current != name:
				f.Say("created context %s · use it with: carillon config use %s", name, name)
			default:
				f.Say("changed context %s", name)
			}

			return showContext(f, newListedContext(file, name, file.Current))
		},
	}
}

// setField sets the field in a word KEY=VALUE.
func setField(ctx context.Context, f *factory.Factory, c *settings.Context, word string) error {
	key, value, ok := strings.Cut(word, "=")
	if !ok {
		return failure.Usage("%s: write KEY=VALUE", task.Quote(word))
	}

	fields := map[string]*string{"server": &c.Server, "ca_file": &c.CAFile, "cert_file": &c.CertFile, "key_file": &c.KeyFile,
		"token_file": &c.TokenFile, "token": &c.Token, "namespace": &c.Namespace}
	key = strings.ReplaceAll(key, "-", "_")
	switch field := fields[key]; {
	case key == "read_only", key == "insecure":
		if value != "true" && value != "false" && value != "" {
			return task.NoneOf(task.CodeBadValue, key, value, "true", "false")
		}
		switches := map[string]*bool{"read_only": &c.ReadOnly, "insecure": &c.Insecure}
		*switches[key] = value == "true"
	case field == nil:
		e := failure.Usage("%s is not a field of a context", task.Quote(key))
		if near := task.Nearest(key, settings.FieldNames()); near != "" {
			e.Hint = "did you mean: " + near
		}
		return e
	case key == "token" && value == "-":
		line, err := factory.ReadPatiently(ctx, func() (string, error) {
			line, _ := bufio.NewReader(f.In).ReadString('\n') // no input means no token
			return strings.TrimSpace(line), nil
		})

		if err != nil {
			return err
		}
		if line == "" {
			return failure.Usage("standard input contains no token")
		}

		*field = line

	case strings.HasSuffix(key, "_file"):
		*field = settings.AbsolutePath(value)
	default:
		*field = value
	}

	return nil
}

// deleteCommand returns "carillon config delete".
func deleteCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a context",
		Long:              "Delete a context. The files that it names are not deleted.",
		Example:           "  carillon config delete staging",
		Args:              factory.Args(1, 1, "the context"),
		ValidArgsFunction: complete.Contexts(f),
		RunE: func(_ *cobra.Command, words []string) error {
			name := words[0]
			var gone listedContext
			_, err := changeConfig(f, func(file *settings.File) error {
				if _, ok := file.Contexts[name]; !ok {
					return (&settings.Settings{Path: f.Path(), File: *file}).UnknownContext(name)
				}

				gone = newListedContext(*file, name, file.Current)
				delete(file.Contexts, name)

				if gone.Current {
					file.Current = ""
				}

				return nil
			})

			if err != nil {
				return err
			}

			f.Say("deleted context %s", name)

			if gone.Current {
				f.Note("it was the current context; commands now use %s", client.DefaultServer)
			}

			return showContext(f, gone)
		},
	}
}

// pathCommand returns "carillon config path".
func pathCommand(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "path",
		Short:   "Print the path of the configuration file",
		Example: "  $EDITOR \"$(carillon config path)\"",
		Args:    factory.Args(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			where := struct {
				Path string `json:"path"`
			}{f.Path()}
			if where.Path == "" {
				return failure.Usage("no configuration directory: CARILLON_CONFIG, XDG_CONFIG_HOME and HOME are not set")
			}
			if f.ForPeople() {
				return f.Print(where.Path + "\n")
			}

			return output.EmitOne(&f.Printer, where, where.Path, nil)
		},
	}
}
