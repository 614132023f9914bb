// Command records generates what follows from the structs of the records in etcd: their codec in package record, and the
// page of all keys and fields. It reads the source of packages, so it also works while the former codec does not compile.
//
//	go generate ./pkg/store/record                      writes codec_generated.go
//	go run ./scripts/records -page build/docs/records.md
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "the `directory` of the repository")
	codec := flag.String("codec", "", "write the codec to this `file`")
	page := flag.String("page", "", "write the page of all records to this `file`")
	flag.Parse()

	if err := run(*root, *codec, *page); err != nil {
		fmt.Fprintln(os.Stderr, "records:", err)
		os.Exit(1)
	}
}

func run(root, codec, page string) error {
	structs, err := readPackages(root)
	if err != nil {
		return err
	}

	if codec != "" {
		text, err := structs.generateCodec()
		if err != nil {
			return err
		}

		if err := os.WriteFile(codec, text, 0o644); err != nil {
			return err
		}
	}

	if page == "" {
		return nil
	}

	tables, err := os.ReadFile(filepath.Join(root, keyTables))
	if err != nil {
		return err
	}

	rules, err := os.ReadFile(filepath.Join(root, promise))
	if err != nil {
		return err
	}

	text, err := structs.generatePage(string(tables), string(rules))
	if err != nil {
		return err
	}

	return os.WriteFile(page, text, 0o644)
}
