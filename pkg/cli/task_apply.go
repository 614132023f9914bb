package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
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
			"documents too. A field that a file leaves out has its default. All of it is checked first: what is\n" +
			"wrong is told with its line and column, and then nothing is sent. What the server refuses later does\n" +
			"not stop the others.\n\n" +
			"Files that end in .ndjson or .jsonl, and a standard input that begins so, have one task in each line.\n" +
			"They may be of any length: lines are sent as they are read, and one that is wrong fails alone.\n\n" +
			"Of more than 100 tasks only those that fail are told, and how many there were. Applying the same\n" +
			"again does no harm, so that whatever was interrupted can be begun anew.",
		Example: `  carillon apply -f nightly-backup.yaml
  carillon apply -f tasks/
  carillon apply -f million.ndjson
  carillon task get nightly-backup -o yaml | sed s/02:30/03:30/ | carillon apply -f -`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().StringArrayVarP(&paths, "filename", "f", nil, "file, directory, or - for the standard input; may be repeated")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json", "jsonl", "ndjson") // the flag is there
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if len(words) > 0 {
			return usage("%s is too much", quote(words[0])).hinting("name files with -f: carillon apply -f %s", words[0])
		}
		if len(paths) == 0 {
			return usage("which file?").hinting("carillon apply -f FILE|DIR|-")
		}
		r := &applying{app: a, scoped: cmd.Flags().Changed("namespace"), counts: map[string]int{}}
		return r.run(cmd.Context(), paths)
	}
	return cmd
}

// applying is an apply while it goes on.
type applying struct {
	*app
	scoped  bool // -n was given: no other namespace may be named
	objects []manifest.Object
	streams []string // files of lines, and "-" for the standard input
	stdin   *bufio.Reader

	told    teller
	counts  map[string]int // by result
	applied []client.Task  // for programs
	held    []string       // lines of an output that may yet become too long
	codes   []int          // exit codes of what failed, told already
}

// few is how many tasks are told one by one.
const few = 100

func (r *applying) run(ctx context.Context, paths []string) error {
	if err := r.read(ctx, paths); err != nil {
		return err
	}
	if len(r.codes) > 0 {
		if r.human() && len(r.objects)+len(r.streams) > 0 {
			r.note("nothing was sent")
		}
		return silently(r.codes)
	}
	return r.deliver(ctx)
}

// deliver applies what was read, and tells what came of it.
func (r *applying) deliver(ctx context.Context) error {
	c, err := r.connect()
	if err != nil {
		return err
	}
	r.told = r.tell(r.total())
	err = r.send(ctx, c)
	r.told.end()
	if err == nil {
		r.sum()
	} else if r.done() > 0 || ctx.Err() != nil {
		r.list()
		if r.human() {
			r.note("%d tasks were applied; the same command goes on from there", r.done())
		}
	}
	if ctx.Err() == nil {
		err = errors.Join(r.emit(), err)
	}
	if err != nil {
		return err
	}
	return silently(r.codes)
}

// total is how many tasks there are, for all that can be told before they are
// read; 0 if nobody knows.
func (r *applying) total() int {
	total := len(r.objects)
	for _, file := range r.streams {
		n, err := manifest.CountLines(file)
		if err != nil { // the standard input, a pipe
			return 0
		}
		total += n
	}
	return total
}

// read checks all that is read before anything is sent, and tells what is wrong
// with it. Files of lines are left for later.
func (r *applying) read(ctx context.Context, paths []string) error {
	for _, path := range paths {
		files, err := []string{path}, error(nil)
		if path != "-" {
			files, err = manifest.Files(path)
		}
		if err != nil {
			r.fail(err)
		}
		for _, file := range files {
			if err := r.readFile(ctx, file); err != nil {
				r.fail(err)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	for _, o := range r.objects {
		if err := r.refuse(o); err != nil {
			r.fail(err)
		}
	}
	return nil
}

func (r *applying) readFile(ctx context.Context, file string) (err error) {
	if manifest.IsLines(file) {
		info, err := os.Stat(file)
		if err == nil && info.IsDir() {
			return fmt.Errorf("%s: is a directory", file)
		}
		if err != nil {
			return fmt.Errorf("%s: %s", file, reason(err))
		}
		r.streams = append(r.streams, file)
		return nil
	}
	var b []byte
	if file == "-" {
		r.stdin = bufio.NewReaderSize(r.In, manifest.MaxLine+1024)
		b, err = patiently(ctx, func() ([]byte, error) {
			if manifest.BeginsWithLine(r.stdin) {
				r.streams = append(r.streams, file)
				return nil, nil
			}
			return manifest.LoadFrom("standard input", r.stdin)
		})
		if err == nil && ctx.Err() == nil && len(r.streams) > 0 && r.streams[len(r.streams)-1] == file {
			return nil
		}
		file = "stdin"
	} else {
		b, err = manifest.Load(file)
	}
	if err != nil {
		return err
	}
	objects, err := manifest.Read(file, b, r.namespace())
	if err == nil && len(objects) == 0 {
		r.note("%s: no tasks in there", file)
	}
	r.objects = append(r.objects, objects...)
	return err
}

// refuse is what is wrong with a task, as far as can be told without a server.
func (r *applying) refuse(o manifest.Object) error {
	if o.Err == nil && r.scoped && o.Spec.Namespace != r.namespace() {
		return o.Locate(task.Invalid(task.CodeBadValue, "namespace", "%s is not the namespace that -n names, %s",
			quote(o.Spec.Namespace), quote(r.namespace())))
	}
	return o.Err
}

// fail tells an error.
func (r *applying) fail(err error) {
	if len(r.codes) < few {
		r.codes = append(r.codes, r.told.report(r.app, err))
		return
	}
	if len(r.codes) == few {
		r.told.print(r.app, "more failed; the others are only counted")
	}
	r.codes = append(r.codes, r.explain(err).exit)
}

// send applies everything, in the order in which it was given.
func (r *applying) send(ctx context.Context, c *client.Client) error {
	sent := make(chan manifest.Object, 64<<10) // those whose answer is to come, in their order
	faults := make(chan error, few)
	quit := make(chan struct{})
	defer close(quit)
	specs := func(yield func(task.Spec) bool) {
		defer close(faults)
		for o, err := range r.all() {
			if err == nil {
				err = r.refuse(o)
			}
			if err != nil {
				select {
				case faults <- err:
					continue
				case <-quit:
					return
				}
			}
			select {
			case sent <- o:
			case <-quit:
				return
			}
			if !yield(o.Spec) {
				return
			}
		}
	}
	if len(r.objects) == 0 && len(r.streams) == 0 {
		return nil
	}
	full := !slices.Contains([]string{asTable, asWide, asName}, r.output)
	ctx, cancel := context.WithCancel(ctx)
	answers, gone := pulled(ctx, c.ApplyAll(ctx, specs, client.BatchOptions{Full: full}))
	defer func() { cancel(); <-gone }()
	for answers != nil || faults != nil {
		select {
		case err, more := <-faults:
			if !more {
				faults = nil
				continue
			}
			r.fail(err)
		case a, more := <-answers:
			if !more {
				answers = nil
				continue
			}
			if a.err != nil {
				return a.err
			}
			if err := r.answered(<-sent, a.BatchResult); err != nil {
				return err
			}
		}
		r.told.step(r.done(), len(r.codes))
	}
	return nil
}

// all is every task: those that were read before, and then the files of lines.
func (r *applying) all() iter.Seq2[manifest.Object, error] {
	return func(yield func(manifest.Object, error) bool) {
		for _, o := range r.objects {
			if !yield(o, nil) {
				return
			}
		}
		for _, file := range r.streams {
			if !r.stream(file, yield) {
				return
			}
		}
	}
}

func (r *applying) stream(file string, yield func(manifest.Object, error) bool) bool {
	var in io.Reader = r.stdin
	if file == "-" {
		file = "stdin"
	} else {
		f, err := os.Open(file)
		if err != nil {
			return yield(manifest.Object{}, fmt.Errorf("%s: %s", file, reason(err)))
		}
		defer f.Close()
		in = f
	}
	for o, err := range manifest.Lines(file, in, r.namespace()) {
		if !yield(o, err) {
			return false
		}
	}
	return true
}

// answered notes what became of a task, and prints it where each has a line.
func (r *applying) answered(o manifest.Object, b client.BatchResult) error {
	if err := b.Err(); err != nil {
		r.fail(locate(o, err))
		return nil
	}
	r.counts[b.Result]++
	t := client.Task{Task: task.Task{Spec: o.Spec, Revision: b.Revision}, Next: b.Next, Result: b.Result}
	t.Paused = b.Paused || t.Paused && b.Next.IsZero() // a former server does not say
	if b.Task != nil {
		t = *b.Task
	}
	switch {
	case r.output == asName, r.output == asJSONL:
		return emitList(r.app, []client.Task{t}, r.taskName, nil)
	case !r.human():
		r.applied = append(r.applied, t)
	case r.done() <= few && !r.told.many():
		r.held = append(r.held, fmt.Sprintf("%s %s%s", b.Result, r.show(ref{b.Namespace, b.Name}), r.nextWords(t)))
	}
	return nil
}

func (r *applying) done() int {
	n := 0
	for _, c := range r.counts {
		n += c
	}
	return n
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

// list tells people of each task, if there are few.
func (r *applying) list() {
	if r.done() <= few {
		for _, line := range r.held {
			r.say("%s", line)
		}
	}
}

// sum tells people what was done.
func (r *applying) sum() {
	r.list()
	total := r.done() + len(r.codes)
	if total < 2 {
		return
	}
	var parts []string
	for _, what := range []string{client.Created, client.Configured, client.Unchanged} {
		parts = append(parts, fmt.Sprintf("%d %s", r.counts[what], what))
	}
	if n := len(r.codes); n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n))
	}
	r.say("%d in all: %s", total, strings.Join(parts, ", "))
}

// emit prints the tasks for programs that want them in one piece.
func (r *applying) emit() error {
	if r.output == asName || r.output == asJSONL { // they are out
		return nil
	}
	return emitChanged(r.app, r.applied, 2, r.taskName)
}
