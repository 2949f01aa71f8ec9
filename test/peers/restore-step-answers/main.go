// restore-step-answers says what the libraries under Velero's restores make of patches, what its resource modifiers make of objects, and
// which hooks it sees for a pod. It reads lines of JSON from stdin, each a question; each gets one line of JSON. With the argument `table`
// it writes which lists of Kubernetes' own kinds are merged by which key.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubejson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/vmware-tanzu/velero/internal/hook"
	"github.com/vmware-tanzu/velero/internal/resourcemodifiers"
	api "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/kuberesource"
)

type question struct {
	// json, merge, strategic, modifiers, init-hooks or exec-hooks
	Ask      string
	Document json.RawMessage
	Patch    json.RawMessage
	// of modifiers
	Config        string
	GroupResource string
	Hooks         *api.RestoreHooks
}

type execHook struct {
	Container string `json:"container"`
	Name      string `json:"name"`
	Source    string `json:"source"`
	Hook      any    `json:"hook"`
}

type answer struct {
	Error  string          `json:"error,omitempty"`
	Errors []string        `json:"errors,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Hooks  []execHook      `json:"hooks,omitempty"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "table" {
		must(json.NewEncoder(os.Stdout).Encode(table()))
		return
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		text, err := lines.ReadBytes('\n')
		if err == io.EOF && len(text) == 0 {
			return
		}
		var q question
		must(json.Unmarshal(text, &q))
		bytes, err := json.Marshal(ask(q))
		must(err)
		out.Write(append(bytes, '\n'))
	}
}

func ask(q question) answer {
	switch q.Ask {
	case "json":
		patch, err := jsonpatch.DecodePatch(q.Patch)
		if err != nil {
			return failed(err)
		}
		result, err := patch.Apply(q.Document)
		return either(result, err)
	case "merge":
		result, err := jsonpatch.MergePatch(q.Document, q.Patch)
		return either(result, err)
	case "strategic":
		var document, patch map[string]any
		must(kubejson.Unmarshal(q.Document, &document))
		must(kubejson.Unmarshal(q.Patch, &patch))
		u := unstructured.Unstructured{Object: document}
		typed, err := scheme.Scheme.New(u.GroupVersionKind())
		if err != nil {
			return failed(err)
		}
		result, err := strategicpatch.StrategicMergeMapPatch(document, patch, typed)
		if err != nil {
			return failed(err)
		}
		bytes, err := json.Marshal(result)
		return either(bytes, err)
	case "modifiers":
		return modify(q)
	case "init-hooks":
		return initHooks(q)
	case "exec-hooks":
		return execHooks(q)
	}
	panic("no question " + q.Ask)
}

func modify(q question) answer {
	config := corev1.ConfigMap{Data: map[string]string{"rules": q.Config}}
	config.Name, config.Namespace = "rules", "velero"
	modifiers, err := resourcemodifiers.GetResourceModifiersFromConfig(&config)
	if err != nil {
		return answer{Error: "parsing: " + err.Error()}
	}
	if err := modifiers.Validate(); err != nil {
		return answer{Error: "validation: " + err.Error()}
	}
	var item unstructured.Unstructured
	must(item.UnmarshalJSON(q.Document))
	result := answer{}
	for _, err := range modifiers.ApplyResourceModifierRules(&item, q.GroupResource, scheme.Scheme, quiet()) {
		result.Errors = append(result.Errors, err.Error())
	}
	bytes, err := json.Marshal(item.Object)
	must(err)
	result.Result = bytes
	return result
}

func initHooks(q question) answer {
	var item unstructured.Unstructured
	must(item.UnmarshalJSON(q.Document))
	hooks, err := hook.GetRestoreHooksFromSpec(q.Hooks)
	if err != nil {
		return failed(err)
	}
	handler := hook.InitContainerRestoreHookHandler{}
	result, err := handler.HandleRestoreHooks(quiet(), kuberesource.Pods, &item, hooks, nil)
	if err != nil {
		return failed(err)
	}
	bytes, err := json.Marshal(result.UnstructuredContent())
	return either(bytes, err)
}

func execHooks(q question) answer {
	var pod corev1.Pod
	must(json.Unmarshal(q.Document, &pod))
	hooks, err := hook.GetRestoreHooksFromSpec(q.Hooks)
	if err != nil {
		return failed(err)
	}
	groups, err := hook.GroupRestoreExecHooks("r", hooks, &pod, quiet(), hook.NewMultiHookTracker())
	if err != nil {
		return failed(err)
	}
	result := answer{}
	for _, container := range pod.Spec.Containers {
		for _, each := range groups[container.Name] {
			result.Hooks = append(result.Hooks, execHook{container.Name, each.HookName, each.HookSource, each.Hook})
		}
		delete(groups, container.Name)
	}
	for container, all := range groups {
		for _, each := range all {
			result.Hooks = append(result.Hooks, execHook{container, each.HookName, each.HookSource, each.Hook})
		}
	}
	return result
}

func either(result []byte, err error) answer {
	if err != nil {
		return failed(err)
	}
	return answer{Result: result}
}

func failed(err error) answer { return answer{Error: err.Error()} }

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

