/** Prints an SPDX 2.3 document of what the image holds: this package, Node, and the packages that it depends on. */
import { readFileSync } from 'node:fs';

interface LockedPackage {
  readonly version?: string;
  readonly license?: string;
  readonly dev?: boolean;
  readonly optional?: boolean;
  readonly integrity?: string;
}

const root = new URL('../', import.meta.url);
const read = (path: string): unknown => JSON.parse(readFileSync(new URL(path, root), 'utf8'));
const { name, version, license } = read('package.json') as Record<string, string>;
const { packages } = read('package-lock.json') as { packages: Record<string, LockedPackage> };

const idOf = (text: string): string => `SPDXRef-${text.replaceAll(/[^A-Za-z0-9.-]/g, '-')}`;
const licenseOf = (text: string | undefined): string =>
  text !== undefined && /^[A-Za-z0-9.+() -]+$/.test(text) ? text : 'NOASSERTION';

const inside = Object.entries(packages).filter(
  ([path, { dev }]) => path !== '' && (dev !== true || path === 'node_modules/node'),
);
const documents = inside.map(([path, locked]) => {
  const packageName = path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length);
  const hex = Buffer.from((locked.integrity ?? '').replace('sha512-', ''), 'base64').toString(
    'hex',
  );
  return {
    SPDXID: idOf(`${packageName}-${locked.version ?? ''}`),
    name: packageName,
    versionInfo: locked.version,
    downloadLocation: 'NOASSERTION',
    licenseConcluded: 'NOASSERTION',
    licenseDeclared: licenseOf(locked.license),
    copyrightText: 'NOASSERTION',
    filesAnalyzed: false,
    externalRefs: [
      {
        referenceCategory: 'PACKAGE-MANAGER',
        referenceType: 'purl',
        referenceLocator: `pkg:npm/${packageName.replace('@', '%40')}@${locked.version ?? ''}`,
      },
    ],
    ...(hex !== '' && { checksums: [{ algorithm: 'SHA512', checksumValue: hex }] }),
  };
});
const unique = [...new Map(documents.map((entry) => [entry.SPDXID, entry])).values()];
const self = idOf(`${name ?? ''}-${version ?? ''}`);
process.stdout.write(
  `${JSON.stringify(
    {
      spdxVersion: 'SPDX-2.3',
      dataLicense: 'CC0-1.0',
      SPDXID: 'SPDXRef-DOCUMENT',
      name: `${name ?? ''}-${version ?? ''}`,
      documentNamespace: `https://spdx.org/spdxdocs/${name ?? ''}-${version ?? ''}`,
      creationInfo: { created: '1970-01-01T00:00:00Z', creators: [`Tool: ${name ?? ''}`] },
      packages: [
        {
          SPDXID: self,
          name,
          versionInfo: version,
          downloadLocation: 'NOASSERTION',
          licenseConcluded: license,
          licenseDeclared: license,
          copyrightText: 'NOASSERTION',
          filesAnalyzed: false,
        },
        ...unique,
      ],
      relationships: [
        {
          spdxElementId: 'SPDXRef-DOCUMENT',
          relationshipType: 'DESCRIBES',
          relatedSpdxElement: self,
        },
        ...unique.map(({ SPDXID }) => ({
          spdxElementId: self,
          relationshipType: 'DEPENDS_ON',
          relatedSpdxElement: SPDXID,
        })),
      ],
    },
    null,
    1,
  )}\n`,
);
