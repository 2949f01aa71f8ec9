/** Velero: pkg/backup/item_backupper.go and pkg/archive/filesystem.go (v1.18.3). */
export const VERSION_PATH = 'metadata/version';
/** Velero 1.18's version. Velero requires it before it chooses among versions of an API. */
export const FORMAT_VERSION = '1.1.0';
const PREFERRED = '-preferredversion';
const SUFFIX = '.json';

/** The place of an item in a backup. */
export interface ItemPlace {
  /** For example `pods` or `deployments.apps`. */
  readonly groupResource: string;
  /** The stored version; undefined for the path without one, which has the preferred version. */
  readonly version: string | undefined;
  readonly isPreferred: boolean;
  /** `''` for cluster-scoped items. */
  readonly namespace: string;
  readonly name: string;
}

/** A directory of items. */
export type ItemDirectory = Omit<ItemPlace, 'name'>;

/** An archive has an item of the preferred version twice, the second time under its version. */
export function itemPaths(item: {
  readonly groupResource: string;
  readonly version: string;
  readonly isPreferred: boolean;
  readonly namespace: string;
  readonly name: string;
}): string[] {
  const { version, isPreferred } = item;
  if (!isPreferred) return [itemPath(item)];
  return [itemPath({ ...item, version: undefined }), itemPath({ ...item, version })];
}

export function itemPath(place: ItemPlace): string {
  return `${directoryPath(place)}/${place.name}${SUFFIX}`;
}

export function directoryPath({
  groupResource,
  version,
  isPreferred,
  namespace,
}: ItemDirectory): string {
  const scope = namespace === '' ? 'cluster' : `namespaces/${namespace}`;
  const versionPart = version === undefined ? '' : `/${version}${isPreferred ? PREFERRED : ''}`;
  return `resources/${groupResource}${versionPart}/${scope}`;
}

/** Undefined for a directory without items. */
export function parseDirectory(path: string): ItemDirectory | undefined {
  const match = /^resources\/([^/]+)(?:\/([^/]+))??\/(?:(cluster)|namespaces\/([^/]+))$/.exec(path);
  if (!match) return undefined;
  const [, groupResource = '', part, , namespace = ''] = match;
  const isPreferred = part === undefined || part.endsWith(PREFERRED);
  const version = part?.endsWith(PREFERRED) === true ? part.slice(0, -PREFERRED.length) : part;
  return { groupResource, version, isPreferred, namespace };
}

/** Undefined for other paths. */
export function parseItemPath(path: string): ItemPlace | undefined {
  const at = path.lastIndexOf('/');
  if (at < 0 || !path.endsWith(SUFFIX)) return undefined;
  const directory = parseDirectory(path.slice(0, at));
  return directory && { ...directory, name: path.slice(at + 1, -SUFFIX.length) };
}
