import type { Backup, KubeClient } from '../../kube/index.ts';
import { globalPoliciesOf, ownPoliciesOf } from '../../plugin/index.ts';
import { type VolumePolicies, withGlobalPolicies } from '../../volume-policy/index.ts';

/** Annotation on a Backup: the name of the ConfigMap with the policies for all backups. */
export const GLOBAL_POLICIES = 'velero.io/global-backup-volume-policy-configmap';

/** A backup's policies and the server's. Throws `NO_VOLUME_POLICY`, `BAD_VOLUME_POLICY`. */
export async function serverPoliciesOf(
  client: KubeClient,
  backup: Backup,
  globalPolicies: string | undefined,
  options: { readonly isPatient?: boolean } = {},
): Promise<VolumePolicies | undefined> {
  const given = notedPolicies(backup, globalPolicies);
  const own = await ownPoliciesOf(client, given, options);
  return withGlobalPolicies(own, await globalPoliciesOf(client, given, options));
}

/** Adds the name of the policies for all backups in the place where plugins read it. */
export function notedPolicies(
  { metadata, ...backup }: Backup,
  globalPolicies: string | undefined,
): Backup {
  const annotations = {
    ...metadata.annotations,
    ...(globalPolicies !== undefined && { [GLOBAL_POLICIES]: globalPolicies }),
  };
  return { ...backup, metadata: { ...metadata, annotations } };
}
