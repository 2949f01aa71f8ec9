import type { BackedUpItems, ItemFile, ItemFolder } from './contract.ts';

export interface ServedVersions {
  /** Undefined if the cluster serves no version. */
  readonly preferred: string | undefined;
  readonly all: readonly string[];
}

export interface VersionChoice {
  readonly served: (type: string) => ServedVersions;
  /** The user's order by type. The first version that both backup and cluster have is used. */
  readonly wanted: ReadonlyMap<string, readonly string[]>;
}

/** The version by type. Other types use the preferred version of the backup's cluster. */
export type ChosenVersions = ReadonlyMap<string, string>;

/**
 * Chooses the version of each type that has several in the backup. First the user's choice, then
 * the cluster's preferred version. Next come the backup's preferred version and the newest common
 * version. Velero: pkg/restore/prioritize_group_version.go, chooseAPIVersionsToRestore (v1.18.3).
 * Velero compares versions of whole groups. Velero also restores additional items in the version of
 * the backup's cluster.
 */
export function chosenVersions(
  folders: Iterable<ItemFolder>,
  { served, wanted }: VersionChoice,
): ChosenVersions {
  const stored = new Map<string, Map<string, boolean>>();
  for (const { groupResource: type, version, isPreferred } of folders) {
    if (version === undefined) continue;
    const versions = stored.get(type) ?? new Map<string, boolean>();
    stored.set(type, versions.set(version, isPreferred));
  }
  const chosen = new Map<string, string>();
  for (const [type, versions] of stored) {
    const { preferred, all } = served(type);
    const isCommon = (version: string): boolean => versions.has(version) && all.includes(version);
    const [own] = [...versions].find(([, isPreferred]) => isPreferred) ?? [];
    const newest = [...versions.keys()].sort(byAge).reverse();
    const ranked = [...(wanted.get(type) ?? []), preferred, own, ...newest];
    const best = ranked.find((version) => version !== undefined && isCommon(version));
    if (best !== undefined && best !== own) chosen.set(type, best);
  }
  return chosen;
}

/** The item's file in its type's chosen version, or the given file if the backup lacks it. */
export function inChosenVersion(
  file: ItemFile,
  chosen: ChosenVersions,
  items: Pick<BackedUpItems, 'has'>,
): ItemFile {
  const version = chosen.get(file.groupResource);
  if (version === undefined || file.version !== undefined) return file;
  const other = { ...file, version, isPreferred: false };
  return items.has(other) ? other : file;
}

/** Reads lines such as `rockbands.music.example.io=v2beta1,v2beta2`, and ignores others. */
export function wantedVersions(text: string): ReadonlyMap<string, readonly string[]> {
  const lines = text.split('\n').map((line) => line.replaceAll(/[ \r]/g, ''));
  return new Map(
    lines.flatMap((line) => {
      const [, type = '', versions = ''] = /^([^=]+)=([^=]+)$/.exec(line) ?? [];
      return type === '' ? [] : [[type, versions.split(',')] as const];
    }),
  );
}

const FORM = /^v([1-9]\d*)(?:(alpha|beta)([1-9]\d*))?$/;

/**
 * Kubernetes' order (k8s.io/apimachinery/pkg/version): alpha, beta, stable. Other forms are older.
 */
function byAge(a: string, b: string): number {
  const [first, second] = [ageOf(a), ageOf(b)];
  const at = first.findIndex((part, index) => part !== second[index]);
  return at === -1 ? (a < b ? 1 : -1) : (first[at] ?? 0) - (second[at] ?? 0);
}

function ageOf(version: string): readonly number[] {
  const [, major, stage = 'stable', minor = '0'] = FORM.exec(version) ?? [];
  if (major === undefined) return [-1, 0, 0];
  return [['alpha', 'beta', 'stable'].indexOf(stage), Number(major), Number(minor)];
}
