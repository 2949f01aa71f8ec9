/** `npm run build:crds`: writes crds/ from schema.ts. A test compares the two. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { stringify } from 'yaml';
import { customResourceDefinition, VELERO_GROUP } from './crd.ts';
import { CRDS } from './schema.ts';

export const crdFileName = (plural: string): string => `${VELERO_GROUP}_${plural}.yaml`;

/** File name and text of every CRD. */
export function crdFiles(): Map<string, string> {
  return new Map(
    CRDS.map((definition) => [
      crdFileName(definition.plural),
      stringify(customResourceDefinition(definition), { aliasDuplicateObjects: false }),
    ]),
  );
}

if (import.meta.main) {
  const folder = new URL('../../../crds/', import.meta.url);
  mkdirSync(folder, { recursive: true });
  for (const [name, text] of crdFiles()) writeFileSync(new URL(name, folder), text);
}
