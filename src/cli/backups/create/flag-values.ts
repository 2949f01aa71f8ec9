import { goDurationNs, goDurationText } from '../../../backup/index.ts';
import {
  define,
  isCode,
  type LabelSelector,
  labelSelectorOf,
  labelsProblem,
  lookup,
} from '../../../base/index.ts';
import type { ClusterFlags } from '../../cluster.ts';
import { UsageError } from '../../usage-error.ts';

type Pairs = Record<string, string>;

/** Common flags of Velero's `backup create`, `restore create` and `schedule create`. */
interface CommonFlags extends ClusterFlags {
  includeNamespaces: string[];
  excludeNamespaces?: string[];
  includeResources?: string[];
  excludeResources?: string[];
  includeClusterResources?: boolean;
  labels?: Pairs;
  annotations?: Pairs;
  selector?: LabelSelector;
  orSelector?: LabelSelector[];
  itemOperationTimeout?: string;
  output?: 'json' | 'yaml';
}

export interface BackupSpecFlags extends CommonFlags {
  ttl?: string;
  includeClusterScopedResources?: string[];
  excludeClusterScopedResources?: string[];
  includeNamespaceScopedResources?: string[];
  excludeNamespaceScopedResources?: string[];
  storageLocation?: string;
  volumeSnapshotLocations?: string[];
  orderedResources?: Pairs;
  csiSnapshotTimeout?: string;
  snapshotVolumes?: boolean;
  snapshotMoveData?: boolean;
  backupType?: 'Full' | 'Incremental';
  dataMover?: string;
  defaultVolumesToFsBackup?: boolean;
  resourcePoliciesConfigmap?: string;
  parallelFilesUpload?: number;
}

export interface RestoreSpecFlags extends CommonFlags {
  fromBackup?: string;
  fromSchedule?: string;
  allowPartiallyFailed?: boolean;
  existingResourcePolicy?: 'none' | 'update';
  existingVolumeDataPolicy?: 'none' | 'full' | 'incremental';
  statusIncludeResources?: string[];
  statusExcludeResources?: string[];
  namespaceMappings?: Pairs;
  restoreVolumes?: boolean;
  preserveNodeports?: boolean;
  resourceModifierConfigmap?: string;
  skipDefaultResourceModifier?: boolean;
  resourcePoliciesConfigmap?: string;
  writeSparseFiles?: boolean;
  parallelFilesDownload?: number;
  deleteExtraFiles?: boolean;
  wait?: boolean;
  dryRun?: boolean;
}

type Read = (text: string, before?: never) => unknown;

/** Parses typed values. Flags without a parser stay unchanged. Throws {@link UsageError}. */
export function readFlags<T extends object>(raw: object): T {
  const read = Object.entries(raw).map(([name, value]: [string, unknown]): [string, unknown] => {
    const reader = lookup(READERS, name);
    if (!reader || value === undefined) return [name, value];
    const texts = (Array.isArray(value) ? value : [value]) as readonly string[];
    return [
      name,
      texts.reduce<unknown>((before, text) => reader(text, before as never), undefined),
    ];
  });
  return Object.fromEntries(read) as T;
}

/** Formats of Velero's command line (v1.18.3: pkg/cmd/util/flag). Throw {@link UsageError}. */

/** `a,b,c`. A repeated flag replaces the earlier value. */
const listValue = (text: string): string[] => text.split(',');

/** `a,b,c`. A repeated flag adds to the earlier value. */
const growingListValue = (text: string, before: readonly string[] = []): string[] => [
  ...before,
  ...csvOf(text, ','),
];

/** `k1=v1,k2=v2`, or with another separator. A repeated flag adds to the earlier value. */
const mapValue =
  (flag: string, sign = '=') =>
  (text: string, before: Readonly<Record<string, string>> = {}): Record<string, string> => {
    const map = { ...before };
    for (const part of csvOf(text, ',')) {
      const at = part.indexOf(sign);
      if (at < 1) throw new UsageError(`${flag} "${part}" is not of the form key${sign}value`);
      define(map, part.slice(0, at), part.slice(at + 1));
    }
    return map;
  };

/** The same, for labels. */
const labelsValue =
  (flag: string) =>
  (text: string, before?: Readonly<Record<string, string>>): Record<string, string> => {
    const labels = mapValue(flag)(text, before);
    const problem = labelsProblem(labels);
    if (problem !== undefined) throw new UsageError(`${flag}: ${problem}`);
    return labels;
  };

const TRUE = new Set(['1', 't', 'T', 'true', 'TRUE', 'True']);
const FALSE = new Set(['0', 'f', 'F', 'false', 'FALSE', 'False']);

/** Go's strconv.ParseBool. An empty value counts as no flag. */
const booleanValue =
  (flag: string) =>
  (text: string): boolean | undefined => {
    if (text === '') return undefined;
    if (TRUE.has(text)) return true;
    if (FALSE.has(text)) return false;
    throw new UsageError(`${flag} "${text}" is neither true nor false`);
  };

/** In Go's format for objects. Negative durations are refused, because no server could use them. */
const durationValue =
  (flag: string, example: string) =>
  (text: string): string => {
    const ns = goDurationNs(text);
    if (ns !== undefined && ns >= 0n) return goDurationText(ns);
    throw new UsageError(`${flag} "${text}" is not a duration such as ${example}`);
  };

const wholeNumberValue =
  (flag: string) =>
  (text: string): number => {
    if (/^\d{1,9}$/.test(text)) return Number(text);
    throw new UsageError(`${flag} "${text}" is not a whole number`);
  };

const selectorValue =
  (flag: string) =>
  (text: string): LabelSelector => {
    try {
      return labelSelectorOf(text);
    } catch (error) {
      if (!isCode(error, 'BAD_SELECTOR')) throw error;
      throw new UsageError(`${flag} "${text}": ${String(error.facts['why'])}`);
    }
  };

/** `a=b or c=d`. */
const orSelectorsValue = (text: string): LabelSelector[] =>
  text.split(' or ').map(selectorValue('--or-selector'));

/** `pods=ns1/a,ns1/b;persistentvolumes=c`. */
function orderedResourcesValue(text: string): Record<string, string> {
  const entries = text.split(';').map((entry) => {
    const parts = entry.split('=').map((part) => part.trim());
    const [kind, names] = parts;
    if (parts.length === 2 && kind && names) return [kind, names] as const;
    throw new UsageError(
      `--ordered-resources "${entry}" is not of the form pods=namespace/name,namespace/name`,
    );
  });
  return Object.fromEntries(entries);
}

/** Splits a record of CSV. A quoted field may contain the separator, and doubled quotes. */
function csvOf(text: string, sign: string): string[] {
  if (text === '') return [];
  const fields: string[] = [];
  let at = 0;
  for (;;) {
    if (text[at] === '"') {
      const quoted = /"((?:[^"]|"")*)"/y;
      quoted.lastIndex = at;
      const [whole, inside = ''] = quoted.exec(text) ?? [];
      const next = at + (whole?.length ?? 0);
      if (whole === undefined || (next < text.length && text[next] !== sign)) {
        throw new UsageError(`the quotes in "${text}" do not fit`);
      }
      fields.push(inside.replaceAll('""', '"'));
      at = next;
    } else {
      const end = text.indexOf(sign, at);
      fields.push(text.slice(at, end === -1 ? text.length : end));
      at = end === -1 ? text.length : end;
    }
    if (at >= text.length) return fields;
    at++;
  }
}

/** Velero takes any case. */
function backupTypeValue(text: string): 'Full' | 'Incremental' {
  const type = (['Full', 'Incremental'] as const).find(
    (each) => each.toLowerCase() === text.trim().toLowerCase(),
  );
  if (type) return type;
  throw new UsageError(`--backup-type "${text}" is neither Full nor Incremental`);
}

const READERS: Readonly<Record<string, Read>> = {
  includeNamespaces: listValue,
  excludeNamespaces: listValue,
  includeResources: listValue,
  excludeResources: listValue,
  includeClusterScopedResources: listValue,
  excludeClusterScopedResources: listValue,
  includeNamespaceScopedResources: listValue,
  excludeNamespaceScopedResources: listValue,
  statusIncludeResources: listValue,
  statusExcludeResources: listValue,
  includeClusterResources: booleanValue('--include-cluster-resources'),
  labels: labelsValue('--labels'),
  annotations: mapValue('--annotations'),
  namespaceMappings: mapValue('--namespace-mappings', ':'),
  selector: selectorValue('--selector'),
  orSelector: orSelectorsValue,
  itemOperationTimeout: durationValue('--item-operation-timeout', '4h'),
  ttl: durationValue('--ttl', '720h'),
  csiSnapshotTimeout: durationValue('--csi-snapshot-timeout', '10m'),
  volumeSnapshotLocations: growingListValue,
  orderedResources: orderedResourcesValue,
  snapshotVolumes: booleanValue('--snapshot-volumes'),
  snapshotMoveData: booleanValue('--snapshot-move-data'),
  backupType: backupTypeValue,
  defaultVolumesToFsBackup: booleanValue('--default-volumes-to-fs-backup'),
  parallelFilesUpload: wholeNumberValue('--parallel-files-upload'),
  allowPartiallyFailed: booleanValue('--allow-partially-failed'),
  restoreVolumes: booleanValue('--restore-volumes'),
  skipDefaultResourceModifier: booleanValue('--skip-default-resource-modifier'),
  deleteExtraFiles: booleanValue('--delete-extra-files'),
  preserveNodeports: booleanValue('--preserve-nodeports'),
  writeSparseFiles: booleanValue('--write-sparse-files'),
  parallelFilesDownload: wholeNumberValue('--parallel-files-download'),
  useOwnerReferencesInBackup: booleanValue('--use-owner-references-in-backup'),
  paused: booleanValue('--paused'),
  skipImmediately: booleanValue('--skip-immediately'),
};
