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

// Files are the tasks in the files of -f. Files with one task per line are not read at once, because they can
// have any length.
type Files struct {
	*factory.Factory
	paths   []string
	Scoped  bool // -n was given, so tasks must not name another namespace
	Objects []manifest.Object
	streams []string // files with one task per line; "-" means standard input
	stdin   *bufio.Reader
	fail    func(error) // reports an error
}

// bindFlag declares -f.
func (f *Files) bindFlag(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.paths, "filename", "f", nil, "`FILE`, directory, or - for the standard input; may be repeated")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json", "jsonl", "ndjson") // the flag exists
	cmd.Args = cobra.ArbitraryArgs                                                 // checkArguments checks them
}

// checkArguments rejects words, which were probably intended as files, and a missing -f.
func (f *Files) checkArguments(cmd *cobra.Command, words []string) error {
	f.Scoped = cmd.Flags().Changed("namespace")

	if len(words) > 0 {
		return failure.Usage("unexpected argument %s", task.Quote(words[0])).WithHint("use -f to pass files: %s -f %s", cmd.CommandPath(), words[0])
	}
	if len(f.paths) == 0 {
		return failure.Usage("no file given").WithHint("%s -f FILE|DIR|-", cmd.CommandPath())
	}

	return nil
}

// totalTasks returns the number of tasks as far as it is known before they are read, or 0 if it is unknown.
func (f *Files) totalTasks() int {
	total := len(f.Objects)
	for _, file := range f.streams {
		n, err := manifest.CountLines(file)
		if err != nil { // standard input or a pipe cannot be counted
			return 0
		}
		total += n
	}

	return total
}

// readFiles reads and checks everything except files with one task per line, and reports all errors.
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

	for _, err := range manifest.FindDuplicates(f.Objects) {
		f.fail(err)
	}

	return nil
}

// TaskFiles returns the files that paths name. A directory stands for the files in it, and "-" for standard
// input.
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

// Load reads a whole file or standard input, and returns the name to use in errors.
func Load(ctx context.Context, f *factory.Factory, file string) (name string, b []byte, err error) {
	if file != "-" {
		b, err = manifest.Load(file)
		return file, b, err
	}

	b, err = factory.ReadPatiently(ctx, func() ([]byte, error) { return manifest.LoadFrom("standard input", f.In) })
	return "stdin", b, err
}

// readFile reads a file, or records it if it has one task per line.
func (f *Files) readFile(ctx context.Context, file string) (err error) {
	if manifest.IsJSONLines(file) {
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

		// The function may continue after ctx ends, so it must not change f.
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
		f.Note("%s: contains no tasks", file)
	}

	f.Objects = append(f.Objects, objects...)

	return err
}

// checkTask checks a task as far as that is possible without a server.
func (f *Files) checkTask(o manifest.Object) error {
	if o.Err == nil && f.Scoped && o.Spec.Namespace != f.Namespace() {
		return o.Locate(task.Invalid(task.CodeBadValue, "namespace", "%s does not match -n %s",
			task.Quote(o.Spec.Namespace), task.Quote(f.Namespace())))
	}
	return o.Err
}

// allTasks yields every task: those that were read before, followed by those in files with one task per line.
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

// streamFile yields the tasks of a file with one task per line.
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

	for o, err := range manifest.ReadJSONLines(file, in, f.Namespace()) {
		if !yield(o, err) {
			return false
		}
	}

	return true
}
