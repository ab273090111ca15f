//! A profile: the plugins that decide for the pods of one `schedulerName`, in order.

use super::points::{AnyFilter, AnyScore, Plugin};

pub struct Profile {
    pub name: String,
    /// Each plugin once, whatever points it is enabled at.
    pub plugins: Vec<Box<dyn Plugin>>,
    /// Places in `plugins`, in the order of the point.
    pub pre_enqueue: Vec<usize>,
    pub pre_filter: Vec<usize>,
    pub filter: Vec<usize>,
    pub post_filter: Vec<usize>,
    /// With weights.
    pub score: Vec<(usize, i64)>,
    pub reserve: Vec<usize>,
    pub permit: Vec<usize>,
    pub pre_bind: Vec<usize>,
    pub post_bind: Vec<usize>,
    /// Stop looking once this share of all nodes was found to fit; None looks at every node.
    pub percentage_of_nodes_to_score: Option<u32>,
}

impl Profile {
    /// Every plugin at every point that it has something to say at, in the given order and with the given weights.
    pub fn of(name: &str, plugins: Vec<(Box<dyn Plugin>, i64)>) -> Profile {
        let weights: Vec<i64> = plugins.iter().map(|(_, w)| *w).collect();
        let plugins: Vec<Box<dyn Plugin>> = plugins.into_iter().map(|(p, _)| p).collect();
        let at = |has: &dyn Fn(&dyn Plugin) -> bool| -> Vec<usize> {
            (0..plugins.len()).filter(|i| has(plugins[*i].as_ref())).collect()
        };
        let filter = at(&|p| p.filter().is_some());
        Profile {
            name: name.to_string(),
            pre_enqueue: at(&|p| p.pre_enqueue().is_some()),
            pre_filter: filter.clone(),
            filter,
            post_filter: at(&|p| ["DynamicResources", "DefaultPreemption"].contains(&p.name())),
            score: at(&|p| p.score().is_some())
                .into_iter()
                .map(|i| (i, weights[i]))
                .collect(),
            reserve: at(&|p| p.reserve().is_some()),
            permit: at(&|p| p.permit().is_some()),
            pre_bind: at(&|p| p.pre_bind().is_some()),
            post_bind: at(&|p| p.post_bind().is_some()),
            percentage_of_nodes_to_score: None,
            plugins,
        }
    }

    pub fn filter_at(&self, place: usize) -> &dyn AnyFilter {
        self.plugins[place].filter().expect("listed as a filter")
    }

    pub fn score_at(&self, place: usize) -> &dyn AnyScore {
        self.plugins[place].score().expect("listed as a score")
    }

    pub fn plugin(&self, name: &str) -> Option<&dyn Plugin> {
        self.plugins.iter().find(|p| p.name() == name).map(|p| p.as_ref())
    }
}
