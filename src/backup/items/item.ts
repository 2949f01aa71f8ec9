import type { ServedResource } from '../../kube/index.ts';
import type { SpoolPlace } from './spool.ts';

/** An object that the API server listed for the backup: its name, and the place of its bytes. */
export interface Item {
  readonly resource: ServedResource;
  /** In the form of {@link typeOf}. */
  readonly type: string;
  /** `apiVersion/Kind`, as in the object itself. */
  readonly kind: string;
  /** `''` for an object without a namespace. */
  readonly namespace: string;
  readonly name: string;
  /** Undefined if it did not fit into the spool: then the object is read again later. */
  readonly place: SpoolPlace | undefined;
  /** Named in `orderedResources`. */
  readonly isOrdered: boolean;
  /** Row number in its list. */
  readonly row: number;
}

/** `namespace/name`, or only the name: the form of users and of Velero's resource list. */
export const idOf = ({ namespace, name }: { namespace: string; name: string }): string =>
  namespace === '' ? name : `${namespace}/${name}`;

/** The reverse of {@link idOf}. */
export function refOf(id: string): { namespace: string; name: string } {
  const at = id.indexOf('/');
  return at < 0
    ? { namespace: '', name: id }
    : { namespace: id.slice(0, at), name: id.slice(at + 1) };
}
