package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

func (a *app) taskApply() *cobra.Command {
	var paths []string
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or change tasks so that they are what files say",
		Long: "Create or change tasks so that they are what files say: YAML or JSON, one task or many, several\n" +
			"documents too. A field that a file leaves out has its default. What is wrong is told with its line and\n" +
			"column; a file that cannot be read sends nothing, and a task that fails does not stop the others.",
		Example: `  carillon apply -f nightly-backup.yaml
  carillon apply -f tasks/
  carillon task get nightly-backup -o yaml | sed s/02:30/03:30/ | carillon apply -f -`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "file, directory, or - for the standard input; may be repeated")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json", "jsonl") // the flag is there
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if len(words) > 0 {
			return usage("%s is too much", quote(words[0])).hinting("name files with -f: carillon apply -f %s", words[0])
		}
		if len(paths) == 0 {
			return usage("which file?").hinting("carillon apply -f FILE|DIR|-")
		}
		r := applying{app: a}
		objects, err := r.read(cmd.Context(), paths)
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		for _, o := range objects {
			err := r.apply(cmd, c, o)
			if err != nil && (cmd.Context().Err() != nil || unreachable(err)) {
				return err
			}
			if err != nil {
				r.fail(err)
			}
		}
		r.sum()
		if err := emitChanged(a, r.applied, 2, a.taskName); err != nil {
			return err
		}
		return silently(r.codes)
	}
	return cmd
}

// applying is an apply while it goes on.
type applying struct {
	*app
	applied []client.Task
	codes   []int // exit codes of what failed, told already
}

// read collects the tasks of all files that can be read; the others are told.
func (r *applying) read(ctx context.Context, paths []string) ([]manifest.Object, error) {
	var objects []manifest.Object
	for _, path := range paths {
		files, err := []string{path}, error(nil)
		if path != "-" {
			files, err = manifest.Files(path)
		}
		if err != nil {
			r.fail(err)
		}
		for _, file := range files {
			found, err := r.readFile(ctx, file)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				r.fail(err)
			}
			objects = append(objects, found...)
		}
	}
	return objects, nil
}

func (r *applying) readFile(ctx context.Context, file string) ([]manifest.Object, error) {
	var b []byte
	var err error
	if file == "-" {
		b, err = patiently(ctx, func() ([]byte, error) { return manifest.LoadFrom("standard input", r.In) })
		file = "stdin"
	} else {
		b, err = manifest.Load(file)
	}
	if err != nil {
		return nil, err
	}
	objects, err := manifest.Read(file, b, r.namespace())
	if err == nil && len(objects) == 0 {
		r.note("%s: no tasks in there", file)
	}
	return objects, err
}

func (r *applying) fail(err error) { r.codes = append(r.codes, r.report(err)) }

func (r *applying) apply(cmd *cobra.Command, c *client.Client, o manifest.Object) error {
	name := ref{o.Spec.Namespace, o.Spec.Name}
	err := o.Err
	if err == nil && cmd.Flags().Changed("namespace") && o.Spec.Namespace != r.namespace() {
		err = o.Locate(task.Invalid(task.CodeBadValue, "namespace", "%s is not the namespace that -n names, %s",
			quote(o.Spec.Namespace), quote(r.namespace())))
	}
	var t client.Task
	if err == nil {
		t, err = c.Apply(cmd.Context(), o.Spec, client.ApplyOptions{})
		err = locate(o, err)
	}
	if err != nil {
		return err
	}
	r.applied = append(r.applied, t)
	r.say("%s %s%s", t.Result, r.show(name), r.nextWords(t))
	return nil
}

// locate places what a server says about a field in the file. What it says
// about itself, or about the network, has no place there.
func locate(o manifest.Object, err error) error {
	var f *client.Error
	if errors.As(err, &f) && f.Field != "" {
		return o.LocateField(f.Field, err)
	}
	return err
}

func (r *applying) sum() {
	counts := map[string]int{}
	for _, t := range r.applied {
		counts[t.Result]++
	}
	total := len(r.applied) + len(r.codes)
	if total < 2 {
		return
	}
	var parts []string
	for _, what := range []string{client.Created, client.Configured, client.Unchanged} {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	if n := len(r.codes); n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n))
	}
	r.say("%d in all: %s", total, strings.Join(parts, ", "))
}
