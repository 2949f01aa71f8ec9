/**
 * `plugin-spdx.ts PLUGIN ROOTFS`: prints an SPDX 2.3 document of the output of plugin.sh in PLUGIN.
 *
 * A copied file belongs to its package in the document of ROOTFS, which is found by its hash. The
 * parts of the bundle and of Node also come from that document. An error is a file that is neither
 * a copy nor made by plugin.sh.
 */
import { createHash } from 'node:crypto';
import { globSync, lstatSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

interface File {
  readonly SPDXID: string;
  readonly fileName: string;
  readonly checksums: readonly { readonly checksumValue: string }[];
}
interface Relationship {
  readonly spdxElementId: string;
  readonly relationshipType: string;
  readonly relatedSpdxElement: string;
}
interface Document {
  readonly packages: readonly { readonly SPDXID: string; readonly versionInfo: string }[];
  readonly files: readonly File[];
  readonly relationships: readonly Relationship[];
  readonly [field: string]: unknown;
}

const NAME = 'velero-plugin-longshore';
/** Besides copies: the launcher, the program without its line for a shell, and the user. */
const MADE_HERE = new Set([`plugins/${NAME}`, 'plugins/longshore/plugin.mjs', 'etc/passwd']);

const [plugin = '', rootfs = ''] = process.argv.slice(2);
const whole = JSON.parse(
  readFileSync(join(rootfs, 'opt/longshore/longshore.spdx.json'), 'utf8'),
) as Document;
const related = (from: string | undefined, type: string): string[] =>
  whole.relationships
    .filter((each) => each.spdxElementId === from && each.relationshipType === type)
    .map(({ relatedSpdxElement }) => relatedSpdxElement);
const [own = ''] = related('SPDXRef-DOCUMENT', 'DESCRIBES');
const ownersOfFiles = new Map(
  whole.relationships
    .filter(({ relationshipType }) => relationshipType === 'CONTAINS')
    .map(({ spdxElementId, relatedSpdxElement }) => [relatedSpdxElement, spdxElementId]),
);
const ownersByHash = new Map(
  whole.files.map(({ SPDXID, checksums }) => [
    checksums[0]?.checksumValue,
    ownersOfFiles.get(SPDXID),
  ]),
);

const owners = new Set([own]);
const relationships: Relationship[] = [];
const relate = (
  spdxElementId: string,
  relationshipType: string,
  relatedSpdxElement: string,
): void => {
  relationships.push({ spdxElementId, relationshipType, relatedSpdxElement });
};
relate('SPDXRef-DOCUMENT', 'DESCRIBES', own);
const paths = globSync('**/*', { cwd: plugin })
  .filter((path) => lstatSync(join(plugin, path)).isFile())
  .sort();
const files = paths.map((path) => {
  const hash = createHash('sha256')
    .update(readFileSync(join(plugin, path)))
    .digest('hex');
  const owner = MADE_HERE.has(path) ? own : ownersByHash.get(hash);
  if (owner === undefined) throw new Error(`${path} is in the plugin, and no package has it`);
  if (!owners.has(owner)) relate(own, 'DEPENDS_ON', owner);
  owners.add(owner);
  const SPDXID = `SPDXRef-file-${createHash('sha256').update(path).digest('hex').slice(0, 32)}`;
  relate(owner, 'CONTAINS', SPDXID);
  return {
    SPDXID,
    fileName: `./${path}`,
    checksums: [{ algorithm: 'SHA256', checksumValue: hash }],
    licenseConcluded: 'NOASSERTION',
    copyrightText: 'NOASSERTION',
  };
});
// Only the parts of the plugin's own file, not of the whole program.
const { SPDXID: file } =
  whole.files.find(({ fileName }) => fileName === `./opt/longshore/dist/${NAME}`) ?? {};
const parts = new Set<string>();
for (const owner of owners) {
  for (const part of related(owner === own ? file : owner, 'STATIC_LINK')) {
    relate(owner, 'STATIC_LINK', part);
    parts.add(part);
  }
}
const { versionInfo } = whole.packages.find(({ SPDXID }) => SPDXID === own) ?? {};
const document = {
  ...whole,
  name: `${NAME}-${versionInfo ?? ''}`,
  documentNamespace: `https://spdx.org/spdxdocs/${NAME}-${versionInfo ?? ''}`,
  packages: whole.packages.filter(({ SPDXID }) => owners.has(SPDXID) || parts.has(SPDXID)),
  files,
  relationships,
};
process.stdout.write(`${JSON.stringify(document, null, 1)}\n`);
