import { lookup } from '../base/index.ts';
import type { BackupSpec } from '../kube/index.ts';
import type { ResourceFinder } from './filters/resources.ts';

/** Names of `orderedResources` for one resource, in order. Surrounding spaces are trimmed. */
export const orderOf = (
  ordered: BackupSpec['orderedResources'],
  plural: string,
): readonly string[] =>
  (lookup(ordered, plural) ?? '')
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');

/** Problems of `orderedResources`. Velero only warns about a wrong name. */
export function orderErrors(
  ordered: BackupSpec['orderedResources'],
  resources: ResourceFinder,
): { errors: string[]; warnings: string[] } {
  const errors: string[] = [];
  const warnings: string[] = [];
  for (const [plural, list] of Object.entries(ordered ?? {})) {
    const resource = resources.find(plural);
    if (!resource) {
      warnings.push(`orderedResources: the cluster has no resource "${plural}"`);
      continue;
    }
    if (resource.plural !== plural) {
      errors.push(`Invalid orderedResources: "${plural}" must be written "${resource.plural}"`);
      continue;
    }
    const names = list.split(',').map((name) => name.trim());
    if (names.includes('')) {
      errors.push(`Invalid orderedResources for ${plural}: there is an empty name`);
    }
    const form = resource.namespaced ? /^[^/\s]+\/[^/\s]+$/ : /^[^/\s]+$/;
    const shape = resource.namespaced ? 'namespace/name' : 'a name without a namespace';
    for (const name of names.filter((each) => each !== '' && !form.test(each))) {
      errors.push(`Invalid orderedResources for ${plural}: "${name}" is not ${shape}`);
    }
  }
  return { errors, warnings };
}
