//! Every resource and its methods, as data: for preflights, and for the tests that go through all of them.

/// A path and what can be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resource {
    /// The path below `/api/v1` and `/api`; a name in braces stands for one segment.
    pub(crate) path: &'static str,
    /// Its methods, in capitals.
    pub(crate) methods: &'static [&'static str],
    /// Those of them that need no key.
    pub(crate) open: &'static [&'static str],
}

/// All of them.
pub(crate) const RESOURCES: &[Resource] = &[
    keyed("links", &["GET", "POST"]),
    keyed("links/bulk", &["POST"]),
    keyed("links/upsert", &["PUT"]),
    keyed("links/{id}", &["GET", "PATCH", "DELETE"]),
    keyed("links/{id}/qr", &["GET"]),
    keyed("links/{id}/stats", &["GET"]),
    keyed("links/{id}/stats/{dimension}", &["GET"]),
    keyed("links/{id}/clicks", &["GET"]),
    keyed("links/{id}/conversions", &["GET"]),
    keyed("links/{id}/live", &["GET"]),
    keyed("stats", &["GET"]),
    keyed("stats/{dimension}", &["GET"]),
    keyed("clicks", &["GET"]),
    keyed("live", &["GET"]),
    keyed("webhooks", &["GET", "POST"]),
    keyed("webhooks/{id}", &["GET", "PATCH", "DELETE"]),
    keyed("webhooks/{id}/rotate-secret", &["POST"]),
    keyed("webhooks/{id}/failures", &["GET"]),
    keyed("webhooks/{id}/deliveries/{delivery_id}", &["GET"]),
    keyed("webhooks/{id}/test", &["POST"]),
    keyed("webhooks/{id}/redeliver", &["POST"]),
    keyed("usage", &["GET"]),
    Resource { path: "conversions", methods: &["GET", "POST"], open: &["POST"] },
];

/// What only members have of a workspace, below `/app/api/workspaces/{workspace}` as the ones above.
#[cfg(test)]
pub(crate) const FOR_MEMBERS: &[Resource] = &[
    keyed("keys", &["GET", "POST"]),
    keyed("keys/{id}", &["DELETE"]),
    keyed("tags", &["GET"]),
    keyed("slugs/{slug}", &["GET"]),
    keyed("sparklines", &["GET"]),
    keyed("webhooks/{id}/enable", &["POST"]),
    keyed("links/export", &["GET"]),
    keyed("links/import", &["POST"]),
    keyed("links/import/{id}", &["GET"]),
    keyed("links/import/{id}/refused", &["GET"]),
];

/// What is of no workspace, below `/app/api`; open is what needs no session.
#[cfg(test)]
pub(crate) const OF_SESSION: &[Resource] = &[
    Resource { path: "setup", methods: &["GET", "POST"], open: &["GET", "POST"] },
    Resource { path: "sign-in", methods: &["POST"], open: &["POST"] },
    Resource { path: "sign-out", methods: &["POST"], open: &["POST"] },
    keyed("sign-out-everywhere", &["POST"]),
    keyed("session", &["GET"]),
    keyed("members", &["GET", "POST"]),
    keyed("members/{id}", &["DELETE"]),
    keyed("workspaces", &["GET", "POST"]),
];

const fn keyed(path: &'static str, methods: &'static [&'static str]) -> Resource {
    Resource { path, methods, open: &[] }
}

/// Finds the resource of a request's path. A literal segment is preferred to a name in braces, as in
/// the routes.
pub(crate) fn resource_at(path: &str) -> Option<&'static Resource> {
    let below = path.strip_prefix("/api/v1/").or_else(|| path.strip_prefix("/api/"))?;
    let literal = RESOURCES.iter().find(|resource| resource.path == below);
    literal.or_else(|| RESOURCES.iter().find(|resource| matches(resource.path, below)))
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(name), Some(segment)) if name.starts_with('{') && !segment.is_empty() => {}
            (Some(wanted), Some(given)) if wanted == given => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Methods and paths of the routes that a source file has, in which `{}` stands for any segment.
    fn routes_in(source: &str) -> BTreeSet<(String, String)> {
        let functions = source.split("\nfn ").filter_map(|function| {
            let (_, rest) = function.split_once("warp::path!(")?;
            let (path, rest) = rest.split_once(')')?;
            // What others are below of.
            if path.ends_with("..") {
                return None;
            }
            let segment = |text: &str| if text == "String" { "{}".to_owned() } else { text.replace('"', "") };
            let path = path.split(" / ").map(segment).collect::<Vec<_>>().join("/");
            let (_, rest) = rest.split_once(".and(warp::")?;
            Some((rest.split_once("())")?.0.to_uppercase(), path))
        });
        functions.collect()
    }

    /// How many routes the lists of a source file name.
    fn listed_in(source: &str) -> usize {
        source.lines().filter(|line| line.trim_end().ends_with("(app),")).count()
    }

    fn table(resources: &[&[Resource]]) -> BTreeSet<(String, String)> {
        let plain = |path: &str| {
            let segment = |text| if str::starts_with(text, '{') { "{}" } else { text };
            path.split('/').map(segment).collect::<Vec<_>>().join("/")
        };
        let all = resources.iter().copied().flatten();
        all.flat_map(|resource| {
            resource.methods.iter().map(|method| ((*method).to_owned(), plain(resource.path)))
        })
        .collect()
    }

    #[test]
    fn the_tables_have_every_route_and_no_other() {
        let public = include_str!("routes.rs");
        assert_eq!(routes_in(public), table(&[RESOURCES]));
        assert_eq!(listed_in(public), table(&[RESOURCES]).len());
        let dashboard = include_str!("dashboard/mod.rs");
        assert_eq!(routes_in(dashboard), table(&[FOR_MEMBERS, OF_SESSION]));
        assert_eq!(listed_in(dashboard), table(&[FOR_MEMBERS, OF_SESSION]).len());
    }

    #[test]
    fn a_path_finds_its_resource_under_both_prefixes() {
        for prefix in ["/api/v1", "/api"] {
            let found = |path: &str| resource_at(&format!("{prefix}{path}")).map(|resource| resource.path);
            assert_eq!(found("/links"), Some("links"));
            assert_eq!(found("/links/lnk_1"), Some("links/{id}"));
            assert_eq!(found("/conversions"), Some("conversions"));
            assert_eq!(found("/stats/country"), Some("stats/{dimension}"));
            assert_eq!(found("/links/lnk_1/stats"), Some("links/{id}/stats"));
            assert_eq!(found("/links/lnk_1/stats/os"), Some("links/{id}/stats/{dimension}"));
            assert_eq!(found("/links/"), None);
            assert_eq!(found("/nothing"), None);
            assert_eq!(found("/links/a/b/c"), None);
        }
        assert_eq!(resource_at("/links"), None);
    }
}
