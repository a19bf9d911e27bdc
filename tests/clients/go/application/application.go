// Package application does what a Go application does with its credentials, and prints one JSON line about it.
package application

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
)

const usage = `usage: PROGRAM LIBRARY session STEP...
       PROGRAM LIBRARY token         one token, as a process that starts
       PROGRAM LIBRARY many COUNT    so many tokens at once, a goroutine each
       PROGRAM LIBRARY stay FILE     token after token, none remembered, until FILE exists`

// Library is one client library.
type Library struct {
	// Module is its module, whose version is told.
	Module string
	// Token returns a token that is remembered nowhere.
	Token func() (string, error)
	// Steps are what a session may do.
	Steps map[string]Step
}

// Step is one thing that an application does.
type Step func() (any, error)

type outcome struct {
	Ok    any    `json:"ok,omitempty"`
	Error string `json:"error,omitempty"`
}

type seen struct {
	Version string             `json:"version"`
	Steps   map[string]outcome `json:"steps,omitempty"`
	Tokens  []any              `json:"tokens,omitempty"`
	Errors  []string           `json:"errors,omitempty"`
}

// Main runs a library, by the name that the command line gives, in the mode that it gives.
func Main(libraries map[string]Library) {
	if len(os.Args) < 3 {
		log.Fatal(usage)
	}
	library, mode, rest := libraries[os.Args[1]], os.Args[2], os.Args[3:]
	told := seen{Version: version(library.Module)}
	switch mode {
	case "session":
		told.Steps = map[string]outcome{}
		for _, name := range rest {
			told.Steps[name] = attempt(library.Steps[name])
		}
	case "token":
		told.tally(attempt(library.token))
	case "many":
		count, err := strconv.Atoi(rest[0])
		if err != nil {
			log.Fatal(err)
		}
		told.many(library, count)
	case "stay":
		for !exists(rest[0]) {
			told.tally(attempt(library.token))
		}
	default:
		log.Fatal(usage)
	}
	line, err := json.Marshal(told)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}

func (library Library) token() (any, error) { return library.Token() }

func (told *seen) many(library Library, count int) {
	outcomes := make([]outcome, count)
	var all sync.WaitGroup
	for number := range outcomes {
		number := number
		all.Add(1)
		go func() {
			defer all.Done()
			outcomes[number] = attempt(library.token)
		}()
	}
	all.Wait()
	for _, one := range outcomes {
		told.tally(one)
	}
}

func (told *seen) tally(one outcome) {
	if one.Error != "" {
		told.Errors = append(told.Errors, one.Error)
	} else {
		told.Tokens = append(told.Tokens, one.Ok)
	}
}

func attempt(do func() (any, error)) outcome {
	value, err := do()
	if err != nil {
		return outcome{Error: err.Error()}
	}
	return outcome{Ok: value}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	log.Fatalf("%s is not in this program", module)
	return ""
}
