import { z } from 'zod';
import { lookup } from '../../base/index.ts';
import type { KubeObject } from './core.ts';

/**
 * Rules that leave paths of a volume out of its backup, one on each line, in the syntax of a
 * `.kopiaignore`. They are kept in annotations and `dataMoverConfig`, because API servers drop
 * fields that Velero's definitions do not have.
 */

/**
 * On a PVC: rules for its volume. On a pod: rules for all of its volumes, in file-system backups.
 */
const EXCLUDE_PATHS = 'longshore.io/exclude-paths';
/** On a pod, followed by the name of a volume. */
const EXCLUDE_PATHS_OF_VOLUME = 'exclude-paths.longshore.io/';
/** In `dataMoverConfig` and `uploaderSettings`: rules set by the creator of the CR. */
const CONFIG_KEY = 'longshore.excludePaths';
/** Our backup action copies the annotation of the PVC to this key. */
const ANNOTATED_KEY = 'longshore.annotatedExcludePaths';

/** Maximum characters of rules from one source. */
const EXCLUDED_CHARS_MAX = 4096;

/** Where the rules for one volume come from. */
export interface ExcludedPaths {
  /** From the annotations of PVC and pod. Their users are not the administrator. */
  readonly annotations?: string | undefined;
  /** The administrator has switched annotations off. */
  readonly isWithoutAnnotations?: boolean | undefined;
  /** From the CR. */
  readonly config?: string | undefined;
  readonly storageClass?: string | undefined;
  /** From the settings of the node-agent: for all volumes. */
  readonly settings?: string | undefined;
}

/** The rules that an agent passes to its data mover. */
export type AgentExcludes = Omit<ExcludedPaths, 'config'>;

/** Cuts one character past the limit, so that the data mover detects text that is too long. */
const cut = (text: string): string => text.slice(0, EXCLUDED_CHARS_MAX + 1).toWellFormed();

const joined = (texts: readonly (string | undefined)[]): string | undefined => {
  const text = texts.filter((each) => each !== undefined && each !== '').join('\n');
  return text === '' ? undefined : cut(text);
};

/** The annotated rules for the volume of a PVC. */
const excludesOfClaim = ({ metadata }: KubeObject): string | undefined =>
  joined([lookup(metadata.annotations ?? {}, EXCLUDE_PATHS)]);

/** The annotated rules for a volume of a pod. */
export function excludesOfPodVolume(
  { metadata: { annotations = {} } }: KubeObject,
  volume: string,
  claim: KubeObject | undefined,
): string | undefined {
  return joined([
    claim && excludesOfClaim(claim),
    lookup(annotations, EXCLUDE_PATHS),
    lookup(annotations, `${EXCLUDE_PATHS_OF_VOLUME}${volume}`),
  ]);
}

/** For `dataMoverConfig`: the annotated rules of a PVC. */
export function annotatedExcludes(pvc: KubeObject): Record<string, string> {
  const text = excludesOfClaim(pvc);
  return text === undefined ? {} : { [ANNOTATED_KEY]: text };
}

/** All rules for a volume. `config`: the `dataMoverConfig` or `uploaderSettings` of its CR. */
export function excludedPathsOf(
  config: Readonly<Record<string, string>>,
  { annotations, ...more }: AgentExcludes = {},
): ExcludedPaths {
  const annotated = joined([lookup(config, ANNOTATED_KEY), annotations]);
  return { ...more, config: lookup(config, CONFIG_KEY), annotations: annotated };
}

const agentExcludesSchema = z.object({
  annotations: z.string().optional(),
  storageClass: z.string().optional(),
  settings: z.string().optional(),
  isWithoutAnnotations: z.boolean().optional(),
});

/**
 * For the environment of a data mover; undefined without rules. The text has no `$`, because
 * kubelet expands `$(NAME)` in environments. Otherwise a user's rule could read the data mover's
 * secrets.
 */
export function excludesVariable(excludes: AgentExcludes): string | undefined {
  const text = JSON.stringify(excludes);
  return text === '{}' ? undefined : encodeURIComponent(text);
}

/** The reverse of {@link excludesVariable}. */
export const parseExcludesVariable = (text: string | undefined): AgentExcludes =>
  text === undefined ? {} : agentExcludesSchema.parse(JSON.parse(decodeURIComponent(text)));
