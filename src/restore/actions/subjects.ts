import { isSameJson, type KubeObject, type Restore, targetNamespace } from '../../kube/index.ts';
import { type Fields, listAt, textOf } from './fields.ts';

/**
 * Maps namespaces in the subjects of RoleBindings and ClusterRoleBindings. A ServiceAccount is also
 * a User and a member of Groups whose names contain its namespace. Velero maps only
 * ServiceAccounts.
 */

/** `system:serviceaccount:NAMESPACE:NAME`. */
const USER = /^(system:serviceaccount:)([^:]+)(:.+)$/;
/** `system:serviceaccounts:NAMESPACE`. */
const GROUP = /^(system:serviceaccounts:)([^:]+)()$/;

function partsOf({ kind, name }: Fields): readonly string[] | undefined {
  const pattern = kind === 'User' ? USER : kind === 'Group' ? GROUP : undefined;
  return pattern?.exec(textOf(name))?.slice(1);
}

/** The namespace of a subject, or undefined. */
export function namespaceOf(subject: Fields): string | undefined {
  return typeof subject.namespace === 'string' ? subject.namespace : partsOf(subject)?.[1];
}

export function mappedSubject(subject: Fields, restore: Restore): Fields {
  if (typeof subject.namespace === 'string') {
    return { ...subject, namespace: targetNamespace(subject.namespace, restore) };
  }
  const [prefix = '', namespace = '', rest = ''] = partsOf(subject) ?? [];
  if (prefix === '') return subject;
  return { ...subject, name: `${prefix}${targetNamespace(namespace, restore)}${rest}` };
}

/** Text for messages. */
export function subjectText({ kind, namespace, name }: Fields): string {
  const place = typeof namespace === 'string' ? `${namespace}/` : '';
  return `${textOf(kind)} ${place}${textOf(name)}`;
}

/** Subjects that `present` lacks. For a ServiceAccount, an empty apiGroup equals a missing one. */
export function missingSubjects(wanted: KubeObject, present: KubeObject): Fields[] {
  const plain = ({ apiGroup, ...subject }: Fields): Fields =>
    textOf(apiGroup) === '' ? subject : { ...subject, apiGroup };
  const known = listAt(present, 'subjects').map(plain);
  return listAt(wanted, 'subjects').filter(
    (subject) => !known.some((each) => isSameJson(each, plain(subject))),
  );
}

/** Whether the subject's namespace is a copy that this restore makes. */
export function isOfCopy(subject: Fields, restore: Restore): boolean {
  const namespace = namespaceOf(subject);
  return namespace !== undefined && isCopy(namespace, restore);
}

export const isCopy = (namespace: string, { spec }: Restore): boolean =>
  Object.entries(spec.namespaceMapping ?? {}).some(
    ([from, to]) => to === namespace && from !== namespace,
  );
