/**
 * What is looked at of the flags that Velero's server hands on to its plugins: `velero server`'s
 * own.
 */
export interface HostFlags {
  readonly logLevel: string;
  /** `EnableCSI`: the server has Velero's own actions do what ours would. */
  readonly hasCsi: boolean;
}

/**
 * Flags as Go's pflag writes them: `--name=value`, `--name value`. All others are left alone,
 * whatever they are: they change with Velero's versions.
 */
export function hostFlags(args: readonly string[]): HostFlags {
  // As Velero reads it (v1.18.3: pkg/cmd/util/flag/array.go): the last flag replaces those before
  // it, and blanks count.
  const features = valuesOf(args, 'features').at(-1)?.split(',') ?? [];
  return {
    logLevel: valuesOf(args, 'log-level').at(-1) ?? 'info',
    hasCsi: features.includes('EnableCSI'),
  };
}

export function valuesOf(args: readonly string[], name: string): string[] {
  const flag = `--${name}`;
  return args.flatMap((arg, i) => {
    if (arg.startsWith(`${flag}=`)) return [arg.slice(flag.length + 1)];
    return arg === flag ? [args[i + 1] ?? ''] : [];
  });
}
