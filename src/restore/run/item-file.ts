import { CodedError, messageOf, parseJsonExact } from '../../base/index.ts';
import type { KubeObject } from '../../kube/index.ts';
import { isFields } from '../actions/fields.ts';
import type { ItemFile } from './contract.ts';

/** The path of a file, in the form of Velero's errors. */
export const pathOf = ({
  groupResource,
  version,
  isPreferred,
  namespace,
  name,
}: ItemFile): string =>
  [
    ...['resources', groupResource],
    ...(version === undefined ? [] : [`${version}${isPreferred ? '-preferredversion' : ''}`]),
    ...(namespace === '' ? ['cluster'] : ['namespaces', namespace]),
    `${name}.json`,
  ].join('/');

/** Both become parts of a request path, so they must contain no separators. */
const RESOURCE = /^[a-z0-9][-a-z0-9.]*$/;
const VERSION = /^[a-z0-9]+$/i;

/**
 * Parses a stored item. Its path in the archive decides its type and namespace: a forged file must
 * not reach another object. Throws `BAD_ITEM`.
 */
export function readItem(file: ItemFile, bytes: Buffer): KubeObject {
  const bad = (why: string, cause?: unknown): CodedError =>
    new CodedError('BAD_ITEM', `error decoding "${pathOf(file)}": ${why}`, { cause });
  let item: unknown;
  try {
    item = parseJsonExact(bytes.toString());
  } catch (cause) {
    throw bad(messageOf(cause), cause);
  }
  if (!isFields(item) || !isFields(item.metadata)) throw bad('it is no object of Kubernetes');
  const { apiVersion, kind, metadata } = item;
  if (typeof apiVersion !== 'string' || apiVersion === '') throw bad('it has no apiVersion');
  if (typeof kind !== 'string' || kind === '') throw bad("Object 'Kind' is missing");
  const [version = '', group = '', ...more] = apiVersion.split('/').reverse();
  const { groupResource } = file;
  const ofFolder = groupResource.split('.').slice(1).join('.');
  if (group !== ofFolder || more.length > 0 || !VERSION.test(version)) {
    throw bad(`its apiVersion ${JSON.stringify(apiVersion)} is not of the group of its file`);
  }
  if (!RESOURCE.test(groupResource)) throw bad(`${JSON.stringify(groupResource)} is no resource`);
  const { name, namespace = '', labels, annotations } = metadata;
  if (name !== file.name || namespace !== file.namespace) {
    throw bad('its name or namespace is not that of its file');
  }
  for (const [key, texts] of Object.entries({ labels, annotations })) {
    // Go writes an unset map as null.
    if (texts === null) Reflect.deleteProperty(metadata, key);
    if (texts === undefined || texts === null) continue;
    const isMap = isFields(texts) && Object.values(texts).every((text) => typeof text === 'string');
    if (!isMap) throw bad(`its ${key} are no texts`);
  }
  return item as unknown as KubeObject;
}

/** `apiVersion/Kind` of an object. */
export const kindOf = ({ apiVersion = '', kind = '' }: KubeObject): string =>
  `${apiVersion}/${kind}`;

/** The name of an item, in the form of Velero's errors. */
export const idOfItem = (
  type: string,
  { namespace, name }: { namespace: string; name: string },
): string => (namespace === '' ? `${type}/${name}` : `${type}/${namespace}/${name}`);

/** Splits a type, such as `deployments.apps`. */
export function groupOf(type: string): { readonly group: string; readonly resource: string } {
  const [resource = '', ...group] = type.split('.');
  return { group: group.join('.'), resource };
}
