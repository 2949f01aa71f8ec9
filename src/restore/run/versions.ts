import type { BackedUpItems, ItemFile, ItemFolder } from './contract.ts';

/** Versions of a type that a cluster serves. */
export interface ServedVersions {
  /** Undefined where it serves none. */
  readonly preferred: string | undefined;
  readonly all: readonly string[];
}

export interface VersionChoice {
  readonly served: (type: string) => ServedVersions;
  /** By type, the first of them that backup and cluster have is taken. */
  readonly wanted: ReadonlyMap<string, readonly string[]>;
}

/** By type. Of one that is not in it the version is taken that the backup's cluster preferred. */
export type ChosenVersions = ReadonlyMap<string, string>;

/**
 * Which version of each type is restored, where a backup has several: the one that the user wants,
 * the one that the cluster prefers, the one that the backup's cluster preferred, or else the newest
 * that both have. Velero: pkg/restore/prioritize_group_version.go, chooseAPIVersionsToRestore
 * (v1.18.3); it goes by the versions of whole groups, and restores what an action asks for in the
 * version of the backup's cluster.
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

/**
 * The file of an item in the version that is chosen for its type; as it is given where the backup
 * does not have the item in that one.
 */
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

/**
 * Lines such as `rockbands.music.example.io=v2beta1,v2beta2`; what is no such line says nothing, as
 * with Velero.
 */
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
 * As Kubernetes orders versions (k8s.io/apimachinery/pkg/version): alpha, beta, stable; those of
 * another form before all of them.
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
