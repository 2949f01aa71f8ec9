import { readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import ts from 'typescript';

/** Writes the declarations of a source file and its imports: the types for plugins. */
export function buildTypes(root: string, source: string, out: string): void {
  const config = `${root}tsconfig.json`;
  const { config: parsed } = ts.parseConfigFileTextToJson(config, readFileSync(config, 'utf8')) as {
    config: { compilerOptions: object };
  };
  const { options } = ts.convertCompilerOptionsFromJson(
    {
      ...parsed.compilerOptions,
      noEmit: false,
      declaration: true,
      emitDeclarationOnly: true,
      noCheck: true,
      outDir: out,
      rootDir: `${root}src`,
    },
    dirname(config),
  );
  const { emitSkipped, diagnostics } = ts.createProgram([source], options).emit();
  if (!emitSkipped && diagnostics.length === 0) return;
  const host = {
    getCanonicalFileName: (name: string) => name,
    getCurrentDirectory: () => root,
    getNewLine: () => '\n',
  };
  throw new Error(ts.formatDiagnostics(diagnostics, host));
}
