import { CodedError, isCode } from '../base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  type Resource,
} from '../kube/index.ts';

/** On objects that cannot have an owner reference: the UID of their DataUpload or DataDownload. */
export const OWNER_UID = 'longshore.io/owner-uid';

/** A name proves nothing: any user may create an object with a CR's name. */
export const isMadeFor = ({ metadata }: KubeObject, { metadata: { uid } }: KubeObject): boolean =>
  metadata.annotations?.[OWNER_UID] === uid ||
  metadata.ownerReferences?.some((owner) => owner.uid === uid) === true;

/** Returns the object, or undefined. Throws `FOREIGN_OBJECT` if it was not made for the CR. */
export function assertMadeFor<T extends KubeObject>(
  resource: Resource<T>,
  object: T | undefined,
  owner: KubeObject,
): T | undefined {
  if (!object || isMadeFor(object, owner)) return object;
  const { namespace, name } = object.metadata;
  const where = namespace === undefined ? name : `${namespace}/${name}`;
  throw new CodedError(
    'FOREIGN_OBJECT',
    `there is a ${resource.kind} ${where} already, and it was not made for this operation: it was left untouched; ` +
      'remove it, or use another name, and try again',
  );
}

/**
 * Creates the object, or returns the object that was created before a crash: names come from the
 * CR. Backups leave the object out. Throws `FOREIGN_OBJECT` if the name belongs to another object.
 */
export async function makeFor<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  object: NewObject<T>,
  owner: KubeObject,
): Promise<T> {
  const { namespace, name = '' } = object.metadata;
  try {
    const labels = { ...object.metadata.labels, ...NOT_IN_BACKUPS };
    return await client.create(resource, { ...object, metadata: { ...object.metadata, labels } });
  } catch (error) {
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    const found = await client.get(resource, {
      ...(namespace !== undefined && { namespace }),
      name,
    });
    assertMadeFor(resource, found, owner);
    return found;
  }
}
