package apply

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// Files are the tasks that -f names. What is not a file of lines is read at once.
type Files struct {
	*factory.Factory
	paths   []string
	Scoped  bool // -n was given: no other namespace may be named
	Objects []manifest.Object
	streams []string // files of lines, and "-" for the standard input
	stdin   *bufio.Reader
	fail    func(error) // is told what is wrong
}

// bindFlag gives a command -f.
func (f *Files) bindFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.paths, "filename", "f", nil, "`FILE`, directory, or - for the standard input; may be repeated")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json", "jsonl", "ndjson") // the flag is there
	cmd.Args = cobra.ArbitraryArgs                                                 // given checks them
}

// checkArguments refuses words, which may have been meant for files, and the lack of any.
func (f *Files) checkArguments(cmd *cobra.Command, words []string) error {
	f.Scoped = cmd.Flags().Changed("namespace")

	if len(words) > 0 {
		return failure.Usage("unexpected argument %s", task.Quote(words[0])).WithHint("name files with -f: %s -f %s", cmd.CommandPath(), words[0])
	}
	if len(f.paths) == 0 {
		return failure.Usage("no file is given").WithHint("%s -f FILE|DIR|-", cmd.CommandPath())
	}

	return nil
}

// totalTasks is how many tasks there are, for all that can be told before they are
// read; 0 if nobody knows.
func (f *Files) totalTasks() int {
	total := len(f.Objects)
	for _, file := range f.streams {
		n, err := manifest.CountLines(file)
		if err != nil { // the standard input, a pipe
			return 0
		}
		total += n
	}

	return total
}

// readFiles checks all that is read before anything is sent, and tells what is wrong
// with it. Files of lines are left for later.
func (f *Files) readFiles(ctx context.Context) error {
	for _, path := range f.paths {
		found, err := TaskFiles([]string{path})
		if err != nil {
			f.fail(err)
		}

		for _, file := range found {
			if err := f.readFile(ctx, file); err != nil {
				f.fail(err)
			}

			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}

	for _, o := range f.Objects {
		if err := f.checkTask(o); err != nil {
			f.fail(err)
		}
	}

	for _, err := range manifest.Twice(f.Objects) {
		f.fail(err)
	}

	return nil
}

// TaskFiles are the files of tasks that paths name: of a directory those in it; "-" is the
// standard input.
func TaskFiles(paths []string) (files []string, err error) {
	for _, path := range paths {
		found := []string{path}
		if path != "-" {
			if found, err = manifest.Files(path); err != nil {
				return nil, err
			}
		}

		files = append(files, found...)
	}

	return files, nil
}

// Load reads a file, or the standard input, whole, and says what errors call it.
func Load(ctx context.Context, f *factory.Factory, file string) (name string, b []byte, err error) {
	if file != "-" {
		b, err = manifest.Load(file)
		return file, b, err
	}

	b, err = factory.ReadPatiently(ctx, func() ([]byte, error) { return manifest.LoadFrom("standard input", f.In) })
	return "stdin", b, err
}

func (f *Files) readFile(ctx context.Context, file string) (err error) {
	if manifest.IsLines(file) {
		info, err := os.Stat(file)
		if err == nil && info.IsDir() {
			return fmt.Errorf("%s: is a directory", file)
		}
		if err != nil {
			return fmt.Errorf("%s: %s", file, failure.FileReason(err))
		}

		f.streams = append(f.streams, file)

		return nil
	}

	var b []byte
	if file == "-" {
		in := bufio.NewReaderSize(f.In, manifest.MaxLine+1024)
		f.stdin = in

		// A read is left behind when ctx ends: it must change nothing of f.
		var isLines bool
		isLines, err = factory.ReadPatiently(ctx, func() (bool, error) { return manifest.BeginsWithLine(in), nil })
		if err == nil && isLines {
			f.streams = append(f.streams, file)
			return nil
		}

		if err == nil {
			b, err = factory.ReadPatiently(ctx, func() ([]byte, error) { return manifest.LoadFrom("standard input", in) })
		}

		file = "stdin"
	} else {
		b, err = manifest.Load(file)
	}

	if err != nil {
		return err
	}

	objects, err := manifest.Read(file, b, f.Namespace())
	if err == nil && len(objects) == 0 {
		f.Note("%s: no tasks in there", file)
	}

	f.Objects = append(f.Objects, objects...)

	return err
}

// checkTask is what is wrong with a task, as far as can be told without a server.
func (f *Files) checkTask(o manifest.Object) error {
	if o.Err == nil && f.Scoped && o.Spec.Namespace != f.Namespace() {
		return o.Locate(task.Invalid(task.CodeBadValue, "namespace", "%s is not the namespace that -n names, %s",
			task.Quote(o.Spec.Namespace), task.Quote(f.Namespace())))
	}
	return o.Err
}

// allTasks is every task: those that were read before, and then the files of lines.
func (f *Files) allTasks() iter.Seq2[manifest.Object, error] {
	return func(yield func(manifest.Object, error) bool) {
		for _, o := range f.Objects {
			if !yield(o, nil) {
				return
			}
		}

		for _, file := range f.streams {
			if !f.streamFile(file, yield) {
				return
			}
		}
	}
}

func (f *Files) streamFile(file string, yield func(manifest.Object, error) bool) bool {
	var in io.Reader = f.stdin

	if file == "-" {
		file = "stdin"
	} else {
		opened, err := os.Open(file)
		if err != nil {
			return yield(manifest.Object{}, fmt.Errorf("%s: %s", file, failure.FileReason(err)))
		}

		defer opened.Close()

		in = opened
	}

	for o, err := range manifest.Lines(file, in, f.Namespace()) {
		if !yield(o, err) {
			return false
		}
	}

	return true
}
